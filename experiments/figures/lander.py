"""The same losses fly a lander: PPO with a critic, and GRPO ported faithfully.

Claim: the surrogate, GAE, the group advantage and k3 are no special things of language models: PPO
flies gymnasium's LunarLander-v3 (above 200 is solved). GRPO, with one return for all actions of an
episode and no critic, stays far behind: credit over hundreds of actions is what the critic is for.
(GRPO: 2402.03300; PPO: 1707.06347.)
Criterion, in a seed: PPO's mean return over 50 episodes, actions of highest probability, is at
least 200; GRPO's is at least 100 lower; no GRPO group is degenerate: returns are continuous. All
three seeds must hold.

A prompt is a seed of the environment; GRPO starts G episodes from it, PPO one from each of as many
seeds: both see the same number of episodes. Rows are whole episodes, columns are actions, so the
records and functions are those of text: `estimate`, `policy_loss`, `ppo()`, `grpo()`.

    pip install 'rlhf_jax[lander]'
    python -m experiments.figures.lander     (about 20 minutes on 2 CPU cores, three seeds)
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.figures.drawing import bars, name_axes, panels, pick, plot_curve
from experiments.figures.frame import SEEDS, Figure, Part, Row, main
from rlhf_jax.algorithms.grpo import grpo
from rlhf_jax.algorithms.objective import PolicyObjective, estimate, policy_loss
from rlhf_jax.algorithms.ppo import ppo
from rlhf_jax.errors import ConfigError
from rlhf_jax.losses.aggregate import token_mean
from rlhf_jax.ops.groups import mixed_group
from rlhf_jax.train.optim import OptimConfig, make_optimizer
from rlhf_jax.types import PolicyBatch, Scored, replace, take_rows

SEEN, ACTIONS, LIMIT = 8, 4, 1000  # numbers observed, actions, actions of an episode at most
PPO, GRPO = "PPO", "GRPO"
EVALUATION = 1_000_000  # seeds of the environment from here on are for evaluation


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Episodes of a rollout and how they are learned from; the same for both algorithms."""

    rollouts: int = 120
    episodes: int = 32
    group: int = 8
    epochs: int = 4
    minibatch: int = 8
    width: int = 64
    learning_rate: float = 1e-3
    gamma: float = 0.99
    beta: float = 0.001
    scale: float = 0.01
    every: int = 20
    evaluation: int = 50


def objectives(settings: Settings) -> dict[str, PolicyObjective]:
    """PPO and GRPO as for text, but for γ, an entropy bonus and the token mean of both."""
    flying = ppo(kl_coef=None, gamma=settings.gamma, value_coef=0.5)
    group = replace(grpo(beta=settings.beta), aggregate=token_mean)
    return {name: replace(o, entropy=0.01) for name, o in ((PPO, flying), (GRPO, group))}


def init(key, width: int) -> dict:
    """An MLP of two tanh layers for the policy, one for the critic."""

    def mlp(key, out: int, last: float) -> list:
        sizes, gains = (SEEN, width, width, out), (2**0.5, 2**0.5, last)
        keys = jax.random.split(key, 3)
        shapes = zip(keys, sizes[:-1], sizes[1:], gains, strict=True)
        return [
            (jax.nn.initializers.orthogonal(gain)(k, (i, o)), jnp.zeros(o))
            for k, i, o, gain in shapes
        ]

    policy, critic = jax.random.split(key)
    return {"policy": mlp(policy, ACTIONS, 0.01), "critic": mlp(critic, 1, 1.0)}


def forward(layers: list, x, tanh):
    """The MLP, with jax's or numpy's tanh."""
    for w, b in layers[:-1]:
        x = tanh(x @ w + b)
    w, b = layers[-1]
    return x @ w + b


def fly(params: dict, starts: list[int], draw, deterministic: bool = False) -> dict:
    """One whole episode from each seed of the environment, side by side.

    numpy acts: jax takes longer to be called than a small matrix takes to be multiplied.
    """
    try:
        import gymnasium
    except ImportError:
        raise ConfigError("the lander flies in gymnasium: pip install 'rlhf_jax[lander]'") from None
    envs = [gymnasium.make("LunarLander-v3") for _ in starts]
    rows = len(starts)
    seen_BTX = np.zeros((rows, LIMIT, SEEN), np.float32)
    action_BT, reward_BT = np.zeros((rows, LIMIT), np.int32), np.zeros((rows, LIMIT), np.float32)
    mask_BT, cut_B = np.zeros((rows, LIMIT), bool), np.zeros(rows, bool)
    now_BX = np.stack([env.reset(seed=s)[0] for env, s in zip(envs, starts, strict=True)])
    layers = [tuple(map(np.asarray, layer)) for layer in params["policy"]]
    flying, t = list(range(rows)), 0
    while flying:
        logits_BV = forward(layers, now_BX[flying], np.tanh)
        if not deterministic:  # Gumbel: the largest of logits and noise is a sample
            logits_BV = logits_BV + draw.gumbel(size=logits_BV.shape)
        seen_BTX[flying, t], mask_BT[flying, t] = now_BX[flying], True
        for b, action in zip(tuple(flying), logits_BV.argmax(axis=1), strict=True):
            now_BX[b], reward_BT[b, t], ended, cut_B[b], _ = envs[b].step(int(action))
            action_BT[b, t] = action
            if ended or cut_B[b]:
                flying.remove(b)
        t += 1
    for env in envs:
        env.close()
    return dict(seen=seen_BTX, action=action_BT, reward=reward_BT, mask=mask_BT, cut=cut_B)


def logp_of(layers, seen_BTX, action_BT):
    """log π(action) and entropy of every action."""
    logp_BTV = jax.nn.log_softmax(forward(layers, seen_BTX, jnp.tanh))
    logp_BT = jnp.take_along_axis(logp_BTV, action_BT[..., None], axis=-1)[..., 0]
    return logp_BT, -jnp.sum(jnp.exp(logp_BTV) * logp_BTV, axis=-1)


def scored_episodes(objective, params, reference, flown, settings: Settings) -> Scored:
    """The record of text: PPO is paid at every action, GRPO once for the whole episode."""
    rows = flown["mask"].shape[0]
    logp_BT, entropy_BT = logp_of(params["policy"], flown["seen"], flown["action"])
    stepwise = objective.needs_critic
    value_BT = forward(params["critic"], flown["seen"], jnp.tanh)[..., 0]
    return Scored(
        score_BC=flown["reward"].sum(axis=1)[:, None],
        valid_BC=jnp.full((rows, 1), not stepwise),
        group_B=jnp.arange(rows) // settings.group,
        mask_BT=flown["mask"],
        truncated_B=flown["cut"],
        logp_old_BT=logp_BT,
        logp_ref_BT=logp_of(reference, flown["seen"], flown["action"])[0],
        value_BT=value_BT if stepwise else None,
        step_end_BT=flown["mask"] if stepwise else None,
        step_score_BT=settings.scale * flown["reward"] if stepwise else None,
        entropy_BT=entropy_BT,
    )


@lru_cache
def _learner(settings: Settings, name: str):
    """(optimizer, learn): all epochs over a rollout, one compiled program."""
    objective = objectives(settings)[name]
    updates = settings.epochs * (settings.episodes // settings.minibatch)
    tx = make_optimizer(
        OptimConfig(learning_rate=settings.learning_rate, schedule="linear", max_grad_norm=0.5),
        settings.rollouts * updates,
    )

    def loss(params, seen_BTX, batch, weight_BT):
        logp_BT, entropy_BT = logp_of(params["policy"], seen_BTX, batch.tokens_BT)
        value_BT = forward(params["critic"], seen_BTX, jnp.tanh)[..., 0]
        value_BT = value_BT if objective.needs_critic else None
        return policy_loss(
            objective, logp_BT, batch, weight_BT, entropy_BT=entropy_BT, value_BT=value_BT
        )[0]

    @jax.jit
    def learn(params, opt_state, reference, flown, key):
        scored = scored_episodes(objective, params, reference, flown, settings)
        labels = estimate(objective, scored)
        batch = PolicyBatch(
            tokens_BT=flown["action"],
            attend_BT=flown["mask"],
            mask_BT=labels.mask_BT,
            group_B=scored.group_B,
            advantage_BT=labels.advantage_BT,
            logp_old_BT=scored.logp_old_BT,
            logp_ref_BT=scored.logp_ref_BT,
            value_old_BT=scored.value_BT,
            return_BT=labels.return_BT,
        )

        def update(carry, rows_B):
            params, opt_state = carry
            part = take_rows(batch, rows_B)
            weight_BT = objective.aggregate(part.mask_BT, part.group_B)
            grads = jax.grad(loss)(params, flown["seen"][rows_B], part, weight_BT)
            deltas, opt_state = tx.update(grads, opt_state, params)
            return (optax.apply_updates(params, deltas), opt_state), None

        keys = jax.random.split(key, settings.epochs)
        order = jax.vmap(lambda k: jax.random.permutation(k, settings.episodes))(keys)
        parts = order.reshape(updates, settings.minibatch)
        carry, _ = jax.lax.scan(update, (params, opt_state), parts)
        mixed_B = mixed_group(scored.score_BC[:, 0], scored.group_B)
        return *carry, 1 - mixed_B.mean()

    return tx, learn


def measure(seed: int, settings: Settings) -> list[Row]:
    rows = []
    for name in (PPO, GRPO):
        tx, learn = _learner(settings, name)
        params = init(jax.random.key(seed), settings.width)
        reference, opt_state = params["policy"], tx.init(params)
        draw, samples = np.random.default_rng([seed, 30]), settings.group if name == GRPO else 1
        actions = 0
        for rollout in range(settings.rollouts):
            starts = draw.integers(0, EVALUATION, settings.episodes // samples)
            flown = fly(params, [int(s) for s in np.repeat(starts, samples)], draw)
            key = jax.random.fold_in(jax.random.key(seed), rollout)
            params, opt_state, degenerate = learn(params, opt_state, reference, flown, key)
            actions += int(flown["mask"].sum())
            row = dict(arm=name, rollout=rollout + 1, actions=actions, degenerate=degenerate)
            row["train"] = flown["reward"].sum(axis=1).mean()
            if (rollout + 1) % settings.every == 0:
                starts = [EVALUATION + i for i in range(settings.evaluation)]
                won_B = fly(params, starts, draw, deterministic=True)["reward"].sum(axis=1)
                row |= dict(evaluation=won_B.mean())
            rows.append(row)
    return rows


def judge(rows: list[Row]) -> dict[str, Part]:
    last = max(row["rollout"] for row in rows)
    flown = {arm: pick(rows, arm=arm, rollout=last)[0]["evaluation"] for arm in (PPO, GRPO)}
    behind = flown[PPO] - flown[GRPO]
    degenerate = max(row["degenerate"] for row in pick(rows, arm=GRPO))
    return {
        "PPO's return": Part(flown[PPO], "≥ 200", flown[PPO] >= 200),
        "GRPO behind by": Part(behind, "≥ 100", behind >= 100),
        "degenerate groups, GRPO": Part(degenerate, "0", degenerate == 0),
    }


def draw(canvas, rows: list[Row]) -> None:
    left, right = panels(canvas, 2, width=5.2)
    evaluated = [row for row in rows if row.get("evaluation") is not None]
    for style, arm in enumerate((PPO, GRPO)):
        plot_curve(left, pick(evaluated, arm=arm), "rollout", "evaluation", arm, style)
    left.axhline(200, color="0.6", linewidth=0.8, linestyle=":")
    name_axes(left, "LunarLander-v3, 50 episodes", "rollout (32 episodes)", "return, best actions")
    last = max(row["rollout"] for row in rows)
    ends = [pick(evaluated, arm=arm, rollout=last) for arm in (PPO, GRPO)]
    bars(right, (PPO, GRPO), [[row["evaluation"] for row in of] for of in ends])
    name_axes(right, "At the end, each seed", "", "return, greedy actions", legend=False)


FIGURE = Figure(
    name="lander",
    title="LunarLander by the same losses",
    paper="1707.06347; 2402.03300",
    claim="the losses of language models fly a lander: PPO clears 200, GRPO without a critic stays "
    "far behind",
    criterion="PPO's mean return ≥ 200, GRPO's ≥ 100 lower, no degenerate group, in 3 of 3",
    settings=Settings(),
    measure=measure,
    judge=judge,
    draw=draw,
    seeds=SEEDS[:3],
)

if __name__ == "__main__":
    main(FIGURE)
