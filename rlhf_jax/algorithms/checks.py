"""What an objective, a rollout and a batch must agree on, refused by name before anything runs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping

from rlhf_jax.advantages import (
    GREEDY_BASELINES,
    GROUP_BASELINES,
    SCORE_BASELINES,
    VALUE_BASELINES,
    reward_to_go,
)
from rlhf_jax.algorithms.measures import sampled_logp
from rlhf_jax.errors import ConfigError, ConfigWarning
from rlhf_jax.losses.kl import placement_advice


def check_parts(objective) -> None:
    """Parts of a `PolicyObjective` that contradict each other.

    Raises:
        ConfigError: they cannot work together.

    Warns:
        ConfigWarning: a KL estimator stands where its gradient is not that of a KL.
    """
    for place in ("loss", "reward"):
        advice = placement_advice(getattr(objective, f"{place}_kl"), place)
        if advice is not None:  # told at the line that wrote the objective
            warnings.warn(advice, ConfigWarning, stacklevel=4)
    value, advantage = objective.value, objective.advantage
    if objective.loss_kl is not None and objective.loss_kl.controller is not None:
        raise ConfigError("loss_kl takes no controller; adapt the coefficient of reward_kl instead")
    if objective.reward_kl is not None and objective.reward_kl.ratio is not None:
        raise ConfigError("reward_kl takes no ratio: its tokens are the sampling policy's own")
    reads_values = advantage.fn in VALUE_BASELINES
    if reads_values and value is None:
        raise ConfigError(f"advantage={advantage} reads a critic; give value=ValueTerm(...)")
    without = GROUP_BASELINES | GREEDY_BASELINES | {reward_to_go}
    if value is not None and advantage.fn in without:
        raise ConfigError(
            f"value is set, but advantage={advantage} reads no critic; use gae, or value=None"
        )
    if value is not None and value.lam is not None and not reads_values:
        raise ConfigError(f"value.lam is set, but advantage={advantage} has no λ to replace")
    if advantage.fn in SCORE_BASELINES:
        for name in ("reward_kl", "shape_score", "whiten_reward"):
            if getattr(objective, name):
                raise ConfigError(
                    f"{name} is set, but advantage={advantage} reads the functions' own scores "
                    "and no shaped reward; put the KL in the loss (loss_kl)"
                )


def check_statistic(objective, read_by: Mapping[Callable, Callable]) -> None:
    """A statistic of the whole batch is there where the loss of a preference objective reads it.

    Args:
        objective: has a loss and a statistic (or None).
        read_by: losses of this package -> the statistic that each reads.

    Raises:
        ConfigError: it is missing, or nothing reads it.
    """
    loss, statistic = objective.loss, objective.statistic
    wanted = read_by.get(loss.fn)
    if wanted is not None and statistic is None:
        raise ConfigError(
            f"loss={loss} reads a statistic of the whole batch; give statistic={wanted.__name__}"
        )
    ours = loss.fn.__module__.startswith("rlhf_jax.")
    if ours and wanted is None and statistic is not None:
        raise ConfigError(f"statistic is set, but loss={loss} reads none")


def check_scored(objective, scored) -> None:
    """Refuse a rollout that lacks what a part of the objective reads."""
    wanted = {
        "logp_ref_BT": ("reward_kl", objective.reward_kl),
        "value_BT": ("value", objective.value),
        "logp_old_BT": ("correction", objective.correction),
        "logp_sampler_BT": ("correction", objective.correction),
    }
    for field, (part, setting) in wanted.items():
        if setting is not None and getattr(scored, field) is None:
            raise ConfigError(f"{part} reads Scored.{field}, which is None")
    if objective.reward_kl is not None and sampled_logp(scored) is None:
        raise ConfigError("reward_kl reads Scored.logp_old_BT or .logp_full_BT; both are None")


def check_batch(objective, batch, entropy_BT, value_BT) -> None:
    """Refuse an update whose inputs lack what a part of the objective reads."""
    wanted = [
        ("loss_kl", objective.loss_kl, "batch.logp_ref_BT", batch.logp_ref_BT),
        ("entropy", objective.entropy, "entropy_BT", entropy_BT),
        ("value", objective.value, "value_BT", value_BT),
        ("value", objective.value, "batch.return_BT", batch.return_BT),
        ("value", objective.value, "batch.value_old_BT", batch.value_old_BT),
    ]
    for part, setting, field, array in wanted:
        if setting is not None and array is None:
            raise ConfigError(f"{part} reads {field}, which is None")
