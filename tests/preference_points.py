"""The paired losses at numbers of their own, evaluated as a whole batch, and the worked point."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rlhf_jax.bind import bind
from rlhf_jax.losses import preference as p
from rlhf_jax.losses import preference_anchored as anchored
from rlhf_jax.losses import preference_free as free
from rlhf_jax.losses import preference_transport as transport

LOSSES = [
    bind(p.dpo, beta=0.3),
    bind(p.dpo_averaged, beta=2.0),
    bind(p.cdpo, beta=0.3, smoothing=0.1),
    bind(p.robust_dpo, beta=0.3, smoothing=0.2),
    bind(p.hinge, beta=0.3),
    bind(p.ipo, beta=0.3),
    bind(p.ipo_averaged, beta=0.3),
    bind(p.exo, beta=0.3, soft=0.01),
    bind(p.discopop, beta=0.3, tau=0.05),
    bind(p.dpop, beta=0.3, penalty=2.0),
    bind(anchored.nca, beta=0.3),
    bind(anchored.sppo_hard, beta=0.3),
    bind(anchored.apo_zero, beta=0.3),
    bind(anchored.apo_down, beta=0.3),
    bind(free.simpo, beta=2.0, margin=0.5),
    bind(free.cpo, beta=0.3),
    bind(free.orpo, beta=0.3),
    bind(anchored.bco, beta=0.3),
    bind(transport.aot, beta=0.3),
    bind(transport.aot_unpaired, beta=0.3),
]
STATISTIC = {
    anchored.bco: anchored.reward_shift,
    transport.aot: transport.matched_leads,
    transport.aot_unpaired: transport.matched_sides,
}
FREE = (free.simpo, free.cpo, free.orpo)


def each(loss, logp_BS, ref_BS, length_BS):
    """loss_B, the statistic of the whole batch taken first, without gradient."""
    inputs = (logp_BS, ref_BS, length_BS)
    if loss.fn not in STATISTIC:
        return loss(*inputs)
    rows = logp_BS.shape[0]
    statistic = STATISTIC[loss.fn](*inputs, jnp.full(rows, 1 / rows, logp_BS.dtype))
    return loss(*inputs, lax.stop_gradient(statistic))


def whole(loss, logp_BS, ref_BS, length_BS):
    return jnp.sum(each(loss, logp_BS, ref_BS, length_BS))


# --- the worked point: π_ref(y_w) .15, π_ref(y_l) .12, π .20 and .08, lengths 7 and 9 ------------

POINT = (np.log([[0.20, 0.08]]), np.log([[0.15, 0.12]]), np.array([[7, 9]]))


def at(loss, point=POINT):
    with jax.enable_x64(True):
        return float(whole(loss, *(jnp.asarray(x, float) for x in point)))
