"""DPO raises the margin while preferred answers become less likely; and what its weight is for.

Paper: DPO, 2305.18290, section 4 and appendix A.2 (without the weight the policy degenerates);
likelihood displacement: 2402.13228, 2404.19733 (an NLL term holds the preferred side up).
Claim: DPO widens the margin by pushing both sides down; an added NLL stops the fall; without the
weight σ(−βh) nothing stops the push and the reward ends below its peak.
Criterion, in a seed: DPO's log π(y_w) falls by at least 5 nats while the margin rises (from the
first evaluation to the last); with .2·NLL it falls by less than 1; without the weight the reward
ends below its peak and below DPO's. 4,000 Bradley–Terry pairs of an enumerable language.
The NLL arm pays for it with reward: see the third panel.

    python -m experiments.figures.likelihood_displacement     (about 4 minutes on 2 CPU cores)
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np

from experiments.figures.drawing import name_axes, panels, pick, plot_curve
from experiments.figures.frame import Figure, Part, main
from experiments.figures.language import (
    MODEL,
    Language,
    draw_pairs,
    exact,
    exact_logp,
    make_language,
    response_mask,
    with_prompt,
)
from rlhf_jax.algorithms.dpo import dpo, rpo
from rlhf_jax.algorithms.ipo import ipo
from rlhf_jax.algorithms.preference import PreferenceObjective
from rlhf_jax.bind import bind
from rlhf_jax.losses import nll
from rlhf_jax.losses.preference import lead, log_ratio
from rlhf_jax.train.optim import OptimConfig, make_optimizer
from rlhf_jax.train.preference import make_preference_update
from rlhf_jax.train.state import init_state
from rlhf_jax.types import PreferenceBatch

# the utility's spread, in units of Bradley–Terry's logit; the reward σ(utility) is in (0, 1)
SPREAD = 1.3


def unweighted(logp_BS, logp_ref_BS, length_BS, *, beta):
    """ℓ = −β·h: DPO's gradient without the factor σ(−βh) (2305.18290, appendix A.2)."""
    return -beta * lead(log_ratio(logp_BS, logp_ref_BS, length_BS))


ARMS = {
    "DPO": dpo(beta=0.1),
    "DPO + .2 NLL": rpo(beta=0.1, coef=0.2, reduce=nll.summed),
    "IPO": ipo(beta=0.1),
    "DPO, no weight": PreferenceObjective(loss=bind(unweighted, beta=0.1)),
}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Pairs, updates and the optimizer."""

    pairs: int = 4000
    updates: int = 800
    rows: int = 64
    learning_rate: float = 1e-3
    every: int = 160


def train_pairs(objective, language: Language, pair_BS, seed: int, settings: Settings):
    """Preference training from the reference; yields (update, params) at each evaluation."""
    start, block = _pair_functions(settings)
    chosen = np.random.default_rng([seed, 3]).integers(
        0, len(pair_BS), (settings.updates, settings.rows)
    )
    state = start(language.params)
    logp_N = jnp.asarray(language.logp_N, jnp.float32)
    for at in range(0, settings.updates, settings.every):
        numbers = pair_BS[chosen[at : at + settings.every]]
        state = block(objective, state, jnp.asarray(with_prompt(numbers)), logp_N[numbers])
        yield at + settings.every, state.policy


@lru_cache
def _pair_functions(settings: Settings):
    tx = make_optimizer(OptimConfig(learning_rate=settings.learning_rate), settings.updates)
    update = make_preference_update(MODEL, tx)

    @jax.jit
    def block(objective, state, tokens, logp_ref):
        def step(state, part):
            tokens_BST, logp_ref_BS = part
            batch = PreferenceBatch(
                tokens_BST=tokens_BST,
                attend_BST=jnp.ones(tokens_BST.shape, bool),
                mask_BST=jnp.asarray(response_mask(tokens_BST.shape)),
                logp_ref_BS=logp_ref_BS,
            )
            return update(state, objective, batch)[0], None

        return jax.lax.scan(step, state, (tokens, logp_ref))[0]

    return jax.jit(lambda params: init_state(params, tx)), block


def reward_of(language: Language) -> np.ndarray:
    """σ(1.3·utility) of every response, in (0, 1)."""
    return 1 / (1 + np.exp(-SPREAD * language.utility_N))


def measure(seed: int, settings: Settings) -> list[dict]:
    language = make_language(seed)
    pair_BS = draw_pairs(language, SPREAD * language.utility_N, settings.pairs, seed, noisy=True)
    reward_N, rows = reward_of(language), []
    for arm, objective in ARMS.items():
        for at, params in train_pairs(objective, language, pair_BS, seed, settings):
            moved_N = np.asarray(exact_logp(params), np.float64) - language.logp_N
            chosen, rejected = moved_N[pair_BS].mean(axis=0)
            of = exact(params, language, reward=reward_N)
            row = dict(arm=arm, update=at, chosen=chosen, margin=chosen - rejected)
            rows.append(dict(**row, **of))
    return rows


def judge(rows: list[dict]) -> dict[str, Part]:
    first, last = min(r["update"] for r in rows), max(r["update"] for r in rows)
    at = lambda arm, update: pick(rows, arm=arm, update=update)[0]  # noqa: E731
    fall = at("DPO", last)["chosen"]
    rise = at("DPO", last)["margin"] - at("DPO", first)["margin"]
    held_up = at("DPO + .2 NLL", last)["chosen"]
    rewards = [r["reward"] for r in pick(rows, arm="DPO, no weight")]
    peak = rewards[-1] - max(rewards)
    behind = rewards[-1] - at("DPO", last)["reward"]
    return {
        "log π(y_w) − log π_ref, DPO": Part(fall, "≤ −5 nats", fall <= -5),
        "rise of the margin, DPO": Part(rise, "> 0 nats", rise > 0),
        "log π(y_w) − log π_ref, with NLL": Part(held_up, "> −1 nat", held_up > -1),
        "reward without the weight, end − peak": Part(peak, "< 0", peak < 0),
        "the same, end − DPO's": Part(behind, "< 0", behind < 0),
    }


def draw(canvas, rows: list[dict]) -> None:
    columns = (
        ("chosen", "nats a response", "Preferred side: log π − log π_ref"),
        ("margin", "nats a response", "Margin h"),
        ("reward", "expected reward, exact", "Reward"),
    )
    for axes, (column, unit, title) in zip(panels(canvas, 3), columns, strict=True):
        for style, arm in enumerate(ARMS):
            plot_curve(axes, pick(rows, arm=arm), "update", column, arm, style)
        name_axes(axes, title, "update", unit)


FIGURE = Figure(
    name="likelihood_displacement",
    title="Likelihood displacement, and DPO's weight",
    paper="2305.18290, section 4 and A.2; 2402.13228; 2404.19733",
    claim="DPO widens the margin while the preferred answers become less likely; an NLL term stops "
    "that; without the weight σ(−βh) the policy degenerates",
    criterion="DPO's log π(y_w) falls ≥ 5 nats while the margin rises; with NLL < 1 nat; without "
    "the weight the reward ends below its peak and below DPO's",
    settings=Settings(),
    measure=measure,
    judge=judge,
    draw=draw,
)

if __name__ == "__main__":
    main(FIGURE)
