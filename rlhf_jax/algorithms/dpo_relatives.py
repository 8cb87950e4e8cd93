"""Algorithms that are DPO with another loss of the same log-ratios, and nothing else."""

from __future__ import annotations

from rlhf_jax.algorithms.preference import PreferenceObjective
from rlhf_jax.bind import bind
from rlhf_jax.losses import preference, preference_anchored


def slic(*, beta: float = 0.1) -> PreferenceObjective:
    """SLiC's hinge on DPO's margin (2305.10425; normalised by a reference in 2309.06657)."""
    return PreferenceObjective(loss=bind(preference.hinge, beta=beta))


def exo(*, beta: float = 0.1, soft: float = 1e-3) -> PreferenceObjective:
    """EXO for pairs (2402.00856): the reverse KL between preferences, DPO being the forward."""
    return PreferenceObjective(loss=bind(preference.exo, beta=beta, soft=soft))


def discopop(*, beta: float = 0.05, tau: float = 0.05) -> PreferenceObjective:
    """DiscoPOP (2406.08414): logistic and exponential loss, mixed; not convex, see the loss."""
    return PreferenceObjective(loss=bind(preference.discopop, beta=beta, tau=tau))


def nca(*, beta: float = 0.01) -> PreferenceObjective:
    """NCA for pairs (2402.05369): raises the preferred side, to a bound."""
    return PreferenceObjective(loss=bind(preference_anchored.nca, beta=beta))


def sppo_hard(*, beta: float = 0.001) -> PreferenceObjective:
    """SPPO with hard labels (2405.00675); the reference is the policy of the last round."""
    return PreferenceObjective(loss=bind(preference_anchored.sppo_hard, beta=beta))
