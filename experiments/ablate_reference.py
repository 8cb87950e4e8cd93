"""How the reference follows the policy: never, by copies, or as a moving average.

    python -m experiments.ablate_reference

With β = .1 a fixed reference holds the policy back; iterative GRPO (2402.03300, algorithm 1) renews
it. An average renewed every step by a part m lags 1/m steps behind.
"""

from dataclasses import replace
from functools import partial

from experiments.ablate import AblateConfig, ablate, base_with
from experiments.launch import launch
from rlhf_jax.bind import bind
from rlhf_jax.losses.kl import KL, k3

HELD = base_with(loss_kl=KL(estimator=bind(k3), coef=0.1))
VARIANTS = {
    "fixed": HELD,
    "copied every 5": replace(HELD, refresh_reference_every=5),
    "copied every 20": replace(HELD, refresh_reference_every=20),
    "average, .2 a step": replace(HELD, refresh_reference_every=1, refresh_mix=0.2),
    "average, .05 a step": replace(HELD, refresh_reference_every=1, refresh_mix=0.05),
}

if __name__ == "__main__":
    launch(AblateConfig(out="runs/ablate_reference"), partial(ablate, VARIANTS))
