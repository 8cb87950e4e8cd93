"""Every paired algorithm, run on the batch of eight pairs, whole or in parts."""

import jax
import jax.numpy as jnp
from preference_reference import LENGTH_BS, LOGP_BS, REF_BS, WEIGHT_B

from rlhf_jax.algorithms import dpo, dpo_relatives
from rlhf_jax.algorithms.aot import aot, aot_unpaired
from rlhf_jax.algorithms.apo import apo_down, apo_zero
from rlhf_jax.algorithms.bco import bco
from rlhf_jax.algorithms.cpo import cpo
from rlhf_jax.algorithms.ipo import ipo, ipo_averaged
from rlhf_jax.algorithms.orpo import orpo
from rlhf_jax.algorithms.preference import pair_labels, preference_loss
from rlhf_jax.algorithms.simpo import simpo
from rlhf_jax.losses import nll

OBJECTIVES = {
    "dpo": dpo.dpo(),
    "cdpo": dpo.cdpo(),
    "robust_dpo": dpo.robust_dpo(),
    "dpo_averaged": dpo.dpo_averaged(),
    "dpop": dpo.dpop(),
    "rpo": dpo.rpo(),
    "rpo_summed": dpo.rpo(coef=0.005, reduce=nll.summed),
    "wpo": dpo.wpo(beta=0.1),
    "ipo": ipo(),
    "ipo_averaged": ipo_averaged(),
    "simpo": simpo(),
    "orpo": orpo(),
    "cpo": cpo(),
    "slic": dpo_relatives.slic(),
    "exo": dpo_relatives.exo(),
    "discopop": dpo_relatives.discopop(),
    "nca": dpo_relatives.nca(beta=0.1),
    "sppo_hard": dpo_relatives.sppo_hard(beta=0.1),
    "apo_zero": apo_zero(),
    "apo_down": apo_down(),
    "bco": bco(beta=0.1),
    "aot": aot(),
    "aot_unpaired": aot_unpaired(),
}
SORTED = ("aot", "aot_unpaired")
LOGP, REF = jnp.asarray(LOGP_BS, jnp.float32), jnp.asarray(REF_BS, jnp.float32)
LENGTH, WEIGHT = jnp.asarray(LENGTH_BS, jnp.int32), jnp.asarray(WEIGHT_B, jnp.float32)


def part_loss(objective, logp_BS, ref_BS, length_BS, labels):
    return preference_loss(objective, logp_BS, length_BS, labels, logp_ref_BS=ref_BS)


PART = jax.jit(jax.value_and_grad(part_loss, argnums=1, has_aux=True))
LABELS = jax.jit(
    lambda objective, logp_BS, ref_BS, length_BS, weight_B: pair_labels(
        objective, length_BS, weight_B=weight_B, logp_BS=logp_BS, logp_ref_BS=ref_BS
    )
)


def run(objective, logp_BS=LOGP, ref_BS=REF, length_BS=LENGTH, weight_B=None):
    """((loss, metrics), gradient_BS) of the whole batch."""
    labels = LABELS(objective, logp_BS, ref_BS, length_BS, weight_B)
    return PART(objective, logp_BS, ref_BS, length_BS, labels)
