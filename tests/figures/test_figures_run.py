"""Figures end to end with tiny settings: measured, judged, drawn; verdicts mean nothing here."""

from dataclasses import replace

import pytest

from experiments.figures import (
    dynamic_sampling,
    gradient_variance,
    ipo_bandit,
    kl_controller,
    kl_estimators,
    likelihood_displacement,
    maj_at_k,
    overoptimisation,
    response_length,
    reward_kl_frontier,
    reward_model_data,
    supervision,
)
from experiments.figures.frame import run

slow = pytest.mark.slow


def tiny():
    """(figure, settings of a moment's run)."""
    base = supervision.Base(updates=2, rows=8)
    ppo = kl_controller.PPO(steps=4, rows=8, every=2)
    pairs = likelihood_displacement.Settings(pairs=64, updates=4, rows=8, every=2)
    runs = supervision.Settings(base=base, prompts=2, group=2, steps=2, every=1)
    yield kl_estimators, dict(samples=20_000)
    yield gradient_variance, dict(groups=2000, chunk=1000)
    yield ipo_bandit, dict(steps=200, every=100)
    yield reward_model_data, dict(pairs=(20, 40, 80), held_out=500, updates=20)
    yield supervision, dict(base=base, prompts=2, group=2, steps=2, every=1)
    yield maj_at_k, dict(runs=runs, prompts=4, draws=2)
    yield dynamic_sampling, dict(base=base, prompts=2, drawn=4, group=2, steps=2, every=1)
    yield likelihood_displacement, dict(pairs=64, updates=4, rows=8, every=2)
    yield kl_controller, dict(pairs=64, ppo=ppo, window=2)
    yield overoptimisation, dict(pairs=64, ppo=ppo)
    yield reward_kl_frontier, dict(betas=(0.1,), targets=(1.0,), pairs=pairs, ppo=ppo)
    yield response_length, dict(updates=2, rows=8, prompts=2, group=2, steps=12, first=2, last=2)


FAST = {kl_estimators, gradient_variance, ipo_bandit, reward_model_data}


@pytest.mark.parametrize(
    ("module", "numbers"),
    [pytest.param(m, n, id=m.FIGURE.name, marks=() if m in FAST else slow) for m, n in tiny()],
)
def test_a_figure_runs(module, numbers, tmp_path, monkeypatch):
    figure = replace(module.FIGURE, settings=replace(module.FIGURE.settings, **numbers))
    monkeypatch.setattr(module, "FIGURE", figure)
    result = run(figure, (0, 1), tmp_path)
    assert result["verdict"] in ("holds", "does not hold")
    assert all(len(part["values"]) == 2 for part in result["parts"].values())
    assert (tmp_path / f"{figure.name}.png").stat().st_size > 5000
