"""Importance ratios of tokens or of whole answers, with clips of their scale.

    python -m experiments.ablate_ratio

GSPO (2507.18071) takes the geometric mean of an answer's ratios, whose deviations are smaller, and
its clips with them; the product is the true ratio of the answer. Four passes, so that they leave 1.
"""

from dataclasses import replace
from functools import partial

from experiments.ablate import BASE, AblateConfig, ablate, base_with
from experiments.launch import launch
from rlhf_jax.bind import bind
from rlhf_jax.losses.surrogate import clipped, geometric_ratio, product_ratio

PASSES = replace(BASE, num_epochs=4)
MEAN, PRODUCT = bind(geometric_ratio), bind(product_ratio)
VARIANTS = {
    "token, clip .2": PASSES,
    "answer's mean, clip .2": base_with(PASSES, ratio=MEAN),
    "answer's mean, clip .05": base_with(
        PASSES, ratio=MEAN, surrogate=bind(clipped, low=0.05, high=0.05)
    ),
    "answer's mean, clip 4e-4": base_with(
        PASSES, ratio=MEAN, surrogate=bind(clipped, low=3e-4, high=4e-4)
    ),
    "answer's product, clip .2": base_with(PASSES, ratio=PRODUCT),
}

if __name__ == "__main__":
    launch(AblateConfig(out="runs/ablate_ratio"), partial(ablate, VARIANTS))
