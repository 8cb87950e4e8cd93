"""Which estimator of the KL to the reference, and where it is put.

    python -m experiments.ablate_kl

In the loss k2 and k3 have the gradient of a KL on samples of the policy itself, k1 has none in
expectation; in the reward k1 has it, and k2 and k3 have not. Both wrong placements are here on
purpose: look at the KL curves, all with the same β.
"""

import warnings
from functools import partial

from experiments.ablate import BASE, AblateConfig, ablate, base_with
from experiments.launch import launch
from rlhf_jax.bind import bind
from rlhf_jax.errors import ConfigWarning
from rlhf_jax.losses.kl import KL, k1, k2, k3
from rlhf_jax.losses.surrogate import token_ratio

BETA = 0.1
with warnings.catch_warnings():
    warnings.simplefilter("ignore", ConfigWarning)  # of the wrong placements
    VARIANTS = {
        "k3 in the loss": base_with(loss_kl=KL(estimator=bind(k3), coef=BETA)),
        "k2 in the loss": base_with(loss_kl=KL(estimator=bind(k2), coef=BETA)),
        "k1 in the loss": base_with(loss_kl=KL(estimator=bind(k1), coef=BETA)),
        "ratio k1 in the loss": base_with(
            loss_kl=KL(estimator=bind(k1), coef=BETA, ratio=bind(token_ratio))
        ),
        "k1 in the reward": base_with(reward_kl=KL(estimator=bind(k1), coef=BETA)),
        "k2 in the reward": base_with(reward_kl=KL(estimator=bind(k2), coef=BETA)),
        "k3 in the reward": base_with(reward_kl=KL(estimator=bind(k3), coef=BETA)),
        "none": BASE,
    }

if __name__ == "__main__":
    launch(AblateConfig(out="runs/ablate_kl"), partial(ablate, VARIANTS))
