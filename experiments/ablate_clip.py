"""Which tokens still learn once the policy has moved: clip range and form.

    python -m experiments.ablate_clip

Four passes over each rollout, so that ratios leave 1 (2503.14476 widens the upper side against the
loss of entropy; 2506.13585 clips a weight, not the gradient; 2511.20347 and 2507.20673 soften it).
"""

from dataclasses import replace
from functools import partial

from experiments.ablate import BASE, AblateConfig, ablate, base_with
from experiments.launch import launch
from rlhf_jax.algorithms.cispo import cispo
from rlhf_jax.algorithms.gmpo import gmpo
from rlhf_jax.algorithms.sapo import sapo
from rlhf_jax.bind import bind
from rlhf_jax.losses.aggregate import token_mean
from rlhf_jax.losses.surrogate import clipped, dual_clipped, unclipped

PASSES = replace(BASE, num_epochs=4)
VARIANTS = {
    "clipped .2": PASSES,
    "clipped .05": base_with(PASSES, surrogate=bind(clipped, low=0.05, high=0.05)),
    "clip higher .2 .28": base_with(PASSES, surrogate=bind(clipped, low=0.2, high=0.28)),
    "dual clip 3": base_with(PASSES, surrogate=bind(dual_clipped, low=0.2, high=0.2, cap=3.0)),
    "unclipped": base_with(PASSES, surrogate=bind(unclipped)),
    "cispo": base_with(PASSES, surrogate=cispo().surrogate, aggregate=bind(token_mean)),
    "sapo": base_with(PASSES, surrogate=sapo().surrogate),
    "gmpo": base_with(PASSES, surrogate=gmpo().surrogate),
}

if __name__ == "__main__":
    launch(AblateConfig(out="runs/ablate_clip"), partial(ablate, VARIANTS))
