"""Ablations: every variant is sound and differs from the first; the driver goes on where it was."""

import importlib
import json
from pathlib import Path

import jax
import numpy as np
import pytest
from made_up_runs import online_lines, write_run
from reference import sample_batch, sample_scored

from experiments import ablate, ablate_critic
from experiments.ablate import AblateConfig, settled, slug
from experiments.ablate_dots import MOST_DOTS, dotted_sums, likes_dots, right_after_dots
from experiments.launch import parse
from experiments.loss_alone import main as loss_alone
from rlhf_jax.algorithms.objective import estimate, policy_loss
from rlhf_jax.bind import bind
from rlhf_jax.errors import ConfigError
from rlhf_jax.models.config import DecoderShape
from rlhf_jax.report.differences import differences
from rlhf_jax.report.resolved import resolved
from rlhf_jax.types import replace

FILES = sorted(Path(ablate.__file__).parent.glob("ablate_*.py"))
NAMES = [file.stem for file in FILES if file.stem != "ablate_dots"]


def variants_of(name):
    return importlib.import_module(f"experiments.{name}").VARIANTS


def test_what_is_ablated():
    assert {name.removeprefix("ablate_") for name in NAMES} == {
        *("advantage", "aggregate", "clip", "critic", "epochs", "group", "kl"),
        *("length_penalty", "ratio", "reference", "temperature"),
    }


@pytest.mark.parametrize("name", NAMES)
def test_every_variant_is_one_change_of_the_first(name):
    variants = variants_of(name)
    assert len({slug(label) for label in variants}) == len(variants) >= 4
    base, *others = map(resolved, variants.values())
    assert base["out"] == base["model"] == ""
    configs = [json.dumps(config, sort_keys=True) for config in (base, *others)]
    assert len(set(configs)) == len(configs)
    most = {"ablate_critic": 9, "ablate_group": 2, "ablate_reference": 2}.get(name, 3)
    for config in others:
        changed = differences(base, config)
        assert 1 <= len(changed) <= most, changed


@pytest.mark.parametrize("name", NAMES)
def test_every_objective_can_be_traced(name):
    for variant in variants_of(name).values():
        objective, scored = variant.objective, sample_scored()
        labels = jax.eval_shape(estimate, objective, scored)
        assert labels.advantage_BT.shape == scored.mask_BT.shape
        logp_BT, batch = sample_batch()
        weight_BT = objective.aggregate(batch.mask_BT, batch.group_B)
        value_BT = batch.value_old_BT if objective.needs_critic else None
        traced = jax.eval_shape(
            policy_loss, objective, logp_BT, batch, weight_BT, value_BT=value_BT
        )
        assert jax.tree.leaves(traced)[0].shape == ()


def test_a_critic_gets_as_much_compute_as_a_group():
    variants = variants_of("ablate_critic")
    group, critic = variants["group of 8"], variants["critic, groups of 8"]
    assert (ablate_critic.GROUP, ablate_critic.CRITIC) == (5, 9)
    assert group.num_steps * 5 == pytest.approx(critic.num_steps * 9, rel=0.02)
    assert group.rows == critic.rows == variants["critic, one answer a prompt"].rows


def test_dots_tell_nothing_and_are_liked():
    rows = dotted_sums(warmup=40, rl=10, held_out=5)
    dots = [row["completion"].count(".") for row in rows]
    assert set(dots) == set(range(MOST_DOTS + 1))
    assert dotted_sums(warmup=40, rl=10, held_out=5) == rows
    texts, sums = ["...072", "072", "..07", "07.2"], [{"answer": "072"}] * 4
    assert right_after_dots([], texts, sums) == [1, 1, 0, 0]
    np.testing.assert_allclose(likes_dots([], texts, sums), [0.3, 0, 0.2, 0.1])


def fake_runs(monkeypatch, *, broken=()):
    """What the driver runs, by folder; each run is made up, better by .1 where it is "good"."""
    ran = []

    def run(cfg):
        path = Path(cfg.out)
        ran.append(str(path.relative_to(path.parents[1])))
        if ran[-1] in broken:
            raise FloatingPointError("step 3, update 0: not finite")
        if (path / "result.json").exists():
            return
        lines = online_lines(20, seed=cfg.seed, gain=0.5 + 0.1 * ("good" in str(path)))
        write_run(path, lines, seed=cfg.seed, num_steps=20)

    monkeypatch.setattr(ablate.online, "run", run)
    monkeypatch.setattr(ablate.sft, "run", lambda cfg: ran.append(f"warm-up {cfg.seed}"))
    return ran


def grid(tmp_path, **options):
    return AblateConfig(out=str(tmp_path / "grid"), warmups=str(tmp_path / "warm"), **options)


VARIANTS = {"first": ablate.BASE, "good one": replace(ablate.BASE, num_epochs=2)}


def test_a_grid_over_seeds(monkeypatch, tmp_path, capsys):
    ran = fake_runs(monkeypatch)
    ablate.ablate(VARIANTS, grid(tmp_path, seeds=(3, 5)))
    assert ran == [
        *("warm-up 3", "first/seed_3", "good_one/seed_3"),
        *("warm-up 5", "first/seed_5", "good_one/seed_5"),
    ]
    table = (tmp_path / "grid" / "table.md").read_text()
    assert "| first | 2 | 0.700 ± 0.000 | – | – | – |" in table
    assert "| good one | 2 | 0.800 ± 0.000 | +0.100 (n = 2) | – | – |" in table
    assert table in capsys.readouterr().out
    page = (tmp_path / "grid" / "comparison.html").read_text()
    assert "good one" in page and "Score, held-out" in page


def test_one_variant_beside_the_first_and_a_wrong_name(monkeypatch, tmp_path):
    ran = fake_runs(monkeypatch)
    three = VARIANTS | {"third": ablate.BASE}
    ablate.ablate(three, grid(tmp_path, seeds=(0,), only=("third",)))
    assert ran == ["warm-up 0", "first/seed_0", "third/seed_0"]
    with pytest.raises(ConfigError, match="did you mean third"):
        ablate.ablate(three, grid(tmp_path, only=("thrid",)))


def test_numbers_that_overflow_stop_one_run_alone(monkeypatch, tmp_path, capsys):
    ran = fake_runs(monkeypatch, broken=("good_one/seed_0",))
    write_run(tmp_path / "grid/good_one/seed_0", online_lines(20), num_steps=20, finished=False)
    with pytest.raises(SystemExit, match="1"):
        ablate.ablate(VARIANTS, grid(tmp_path, seeds=(0, 1)))
    assert ran[-1] == "good_one/seed_1"
    assert "good one, seed 0: step 3, update 0: not finite" in capsys.readouterr().out
    assert "Not finished" in (tmp_path / "grid" / "comparison.html").read_text()


def test_a_run_of_a_variant():
    cfg = AblateConfig(out="grid", share_of_steps=0.1)
    run = settled(VARIANTS["good one"], cfg, Path("grid/good_one/seed_4"), 4, "warm/policy")
    assert (run.seed, run.prompts.kw["seed"], run.num_steps, run.num_epochs) == (4, 4, 6, 2)
    assert (run.out, run.model) == ("grid/good_one/seed_4", "warm/policy")


@pytest.mark.parametrize(
    "wrong", [dict(seeds=()), dict(seeds=(1, 1)), dict(seeds=(-1,)), dict(share_of_steps=0.0)]
)
def test_a_grid_that_makes_no_sense(wrong):
    with pytest.raises(ConfigError):
        AblateConfig(out="x", **wrong)


def test_its_command_line():
    options = ["--seeds", "1", "2", "--only", "a b", "--warmup.num-steps", "7"]
    cfg = parse(AblateConfig(out="x"), options)
    assert (cfg.seeds, cfg.only, cfg.warmup.num_steps) == ((1, 2), ("a b",), 7)


SIZES = dict(warmup=32, rl=16, held_out=8)


def test_a_tiny_grid_for_real_goes_on_where_it_stopped(tmp_path, capsys):
    variants = {"first": ablate.BASE, "fresh": replace(ablate.BASE, minibatch_rows=None)}
    variants = {
        name: replace(
            variant,
            prompts=variant.prompts.replace(**SIZES),
            num_steps=2,
            num_prompts=8,
            sampling=replace(variant.sampling, num_samples=2),
            minibatch_rows=variant.minibatch_rows and 8,
            rewards=(bind(likes_dots),),
        )
        for name, variant in variants.items()
    }
    cfg = grid(
        tmp_path,
        seeds=(0, 1),
        warmup=replace(
            ablate.WARMUP,
            demonstrations=ablate.WARMUP.demonstrations.replace(**SIZES),
            decoder=DecoderShape(num_layers=1, d_model=16, d_ff=32, max_positions=16),
            num_steps=2,
            batch_rows=16,
        ),
    )
    ablate.ablate(variants, replace(cfg, seeds=(0,)))
    first = (tmp_path / "grid/first/seed_0/metrics.jsonl").read_text()
    ablate.ablate(variants, cfg)
    assert (tmp_path / "grid/first/seed_0/metrics.jsonl").read_text() == first
    table = (tmp_path / "grid" / "table.md").read_text()
    assert "| first | 2 | " in table and "(n = 2)" in table
    assert capsys.readouterr().out.count("is finished (2 steps)") == 3  # warm-up and two variants
    assert len(list((tmp_path / "warm").glob("*/seed_*/policy"))) == 2


def test_a_loss_alone_learns_to_count():
    scores = loss_alone()
    assert scores[0] < 0.15 and np.mean(scores[-10:]) > 0.9
