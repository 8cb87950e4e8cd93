"""Estimators of KL(π ‖ π_ref) from tokens drawn from π, and their coefficient.

The direction, once: every estimator takes (logp_BT, logp_ref_BT), in this order, and its mean
under π is (k1, k3) or is near (k2) Σ_v π_v·(log π_v − log π_ref,v).

With r = π_ref/π and tokens drawn from π (Schulman 2020, "Approximating KL divergence"):

                     value             gradient used as a loss     used as a reward
    k1 = −log r      unbiased          0 on average: no use        ∇KL(π ‖ π_ref)
    k2 = ½(log r)²   slightly biased   ∇KL(π ‖ π_ref)              wrong
    k3 = r − 1 − log r   unbiased, ≥ 0     ∇KL(π_ref ‖ π)          wrong, even in sign

So put k1 in the reward, k2 or k3 in the loss. A right value does not make a right gradient;
`with_gradient` joins the value of one to the gradient of another. Tokens drawn from an older
policy bias all of them; `KL.ratio` multiplies by π/π_old, and since the gradient flows through
that ratio too, k1 and k3 then have the true gradient of KL(π ‖ π_ref) in the loss.

Unbiased is not low in variance: where π is much more peaked than π_ref, k3 varies more than k1.
A mean of k1 below 0 over a large batch means that the tokens were not drawn from π (top-k,
greedy): none of these estimates is then a KL.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array, lax

from rlhf_jax.bind import Bound
from rlhf_jax.errors import ConfigError, plain_number
from rlhf_jax.parts import check_calls, settle
from rlhf_jax.types import pytree

_LIMIT = 20.0  # exp(20) ≈ 4.9e8; past it k3 is constant and its gradient 0


def k1(logp_BT: Array, logp_ref_BT: Array) -> Array:
    """k1_t = log π(y_t) − log π_ref(y_t): unbiased, of either sign (Schulman 2020).

    Args:
        logp_BT: [B, T] ≤ 0, nats.
        logp_ref_BT: [B, T] ≤ 0, nats.
    """
    return logp_BT - logp_ref_BT


def k2(logp_BT: Array, logp_ref_BT: Array) -> Array:
    """k2_t = ½(log π(y_t) − log π_ref(y_t))²: ≥ 0, small bias (Schulman 2020). Args as in `k1`."""
    return 0.5 * (logp_BT - logp_ref_BT) ** 2


def k3(logp_BT: Array, logp_ref_BT: Array) -> Array:
    """k3_t = r − 1 − log r, r = π_ref(y_t)/π(y_t): unbiased, ≥ 0 (2402.03300, eq. 4).

    log r is clamped to ±20: beyond it the value is constant and the gradient 0. `expm1` keeps
    the digits that exp(x) − 1 − x loses when the two policies are close.

    Args: as in `k1`.
    """
    log_r_BT = jnp.clip(logp_ref_BT - logp_BT, -_LIMIT, _LIMIT)
    return jnp.expm1(log_r_BT) - log_r_BT


def with_gradient(logp_BT: Array, logp_ref_BT: Array, *, value, gradient) -> Array:
    """value(·) in value, gradient(·) in gradient: gradient + sg[value − gradient].

    k3 is a good number to read and k2 has the right gradient: `bind(with_gradient, value=k3,
    gradient=k2)`.

    Args:
        logp_BT, logp_ref_BT: as in `k1`.
        value, gradient: estimators.
    """
    shown_BT, taught_BT = value(logp_BT, logp_ref_BT), gradient(logp_BT, logp_ref_BT)
    # not taught + sg[shown − taught]: that would round the value
    return lax.stop_gradient(shown_BT) + (taught_BT - lax.stop_gradient(taught_BT))


_MOST = 0.2  # of the relative error that one call of the controller acts on


def adaptive_coef(coef: Array, kl: Array, *, target: float, horizon: float, batch: int) -> Array:
    """β ← β·(1 + clip(KL/target − 1, −0.2, 0.2)·batch/horizon)   (1909.08593, section 2.2)

    The form of the authors' code, which scales by the episodes seen. A fixed coefficient has no
    controller: None.

    Args:
        coef: β > 0 now.
        kl: mean over responses of the summed k1, nats per response.
        target: nats per response, > 0.
        horizon: episodes, > 0.
        batch: episodes since the last call, ≥ 1.
    """
    error = jnp.clip(kl / target - 1.0, -_MOST, _MOST)
    return coef * (1.0 + error * batch / horizon)


@pytree
class KL:
    """A KL penalty: an estimator, its coefficient β ≥ 0, None or what adapts β, None or a ratio.

    `controller(coef, kl) -> coef` is called once a rollout by whoever holds the coefficient in
    the train state. `ratio(logp_BT, logp_old_BT, mask_BT)` multiplies the estimate, in the loss.

    Raises:
        ConfigError: what `settle` and `check_calls` raise, or one call of `adaptive_coef` could
            turn the coefficient negative (batch too large for its horizon).
    """

    estimator: Bound
    """k1, k2 or k3."""
    coef: float
    """β ≥ 0."""
    controller: Bound | None = None
    """What adapts β; None: it is fixed."""
    ratio: Bound | None = None
    """Importance ratio that multiplies the estimate (`token_ratio`); None: 1."""

    def __post_init__(self):
        settle(self, "KL ")
        check_calls(
            self,
            "KL ",
            estimator=("logp_BT", "logp_ref_BT"),
            controller=("coef", "kl"),
            ratio=("logp_BT", "logp_old_BT", "mask_BT"),
        )
        steps = {} if self.controller is None else self.controller.kw
        horizon, batch = (plain_number(steps.get(name)) for name in ("horizon", "batch"))
        if horizon is not None and batch is not None and horizon <= _MOST * batch:
            raise ConfigError(f"controller.horizon={horizon} must be above {_MOST} x batch={batch}")


def kl_tokens(
    kl: KL, logp_BT: Array, logp_old_BT: Array, logp_ref_BT: Array, mask_BT: Array
) -> Array:
    """r_t·k_t at every counted token, r the `KL.ratio` (1 where it is None).

    With a ratio the mean over tokens of π_old is that over tokens of π, and its gradient
    E_old[r·(k + ∂k/∂log π)·∇log π] is ∇KL(π ‖ π_ref) for k1 and for k3.

    Args:
        kl: the penalty.
        logp_BT, logp_old_BT, logp_ref_BT: [B, T] ≤ 0; no gradient in the last two.
        mask_BT: [B, T] bool.
    """
    kl_BT = kl.estimator(logp_BT, logp_ref_BT)
    return kl_BT if kl.ratio is None else kl_BT * kl.ratio(logp_BT, logp_old_BT, mask_BT)


def placement_advice(kl: KL | None, place: str) -> str | None:
    """What is wrong with this estimator in the "loss" or the "reward"; None where nothing is.

    Only a penalty whose coefficient is a plain number is judged: what jax rebuilds with traced
    coefficients was judged when it was written.
    """
    if kl is None or plain_number(kl.coef) is None:
        return None
    part = "gradient" if place == "loss" else "value"
    fn = kl.estimator
    while isinstance(fn, Bound):
        fn = fn.kw.get(part) if fn.fn is with_gradient else fn.fn
    if place == "loss" and fn is k1 and kl.ratio is None:
        return (
            "loss_kl=k1 pulls nowhere: its expected gradient is 0; use k2 or k3, or "
            "KL(ratio=bind(token_ratio)), or put k1 in the reward (reward_kl)"
        )
    if place == "reward" and fn in (k2, k3):
        return (
            f"reward_kl={fn.__name__} has not the gradient of a KL (k3's may even point the other "
            "way); use k1 in the reward, or put this estimator in the loss (loss_kl)"
        )
    return None
