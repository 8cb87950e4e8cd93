"""A judge that likes length, and what holds it: penalties on answers that are too long.

    python -m experiments.ablate_length_penalty

The score is 1 for a right sum and .1 for each dot before it: dots are paid for and help nobody. The
watched score counts right sums alone. The penalty is DAPO's (2503.14476, eq. 13): nothing up to
`max_length` − `cache` tokens, then down to −1. An answer has 4 tokens beside its dots.
"""

from dataclasses import replace
from functools import partial

from experiments.ablate import AblateConfig, ablate, base_with
from experiments.ablate_dots import DOTTED, DOTTED_WARMUP, likes_dots, right_after_dots
from experiments.launch import launch
from rlhf_jax.algorithms.shaping import missing_end_penalty, overlong_penalty
from rlhf_jax.bind import bind
from rlhf_jax.losses.kl import KL, k3

JUDGED = replace(
    DOTTED,
    rewards=(bind(right_after_dots), bind(likes_dots)),
    watch=(bind(right_after_dots),),
)
STEEP, GENTLE = (bind(overlong_penalty, max_length=n, cache=n - 5) for n in (10, 14))
VARIANTS = {
    "no penalty": JUDGED,
    "penalty from 5, -1 at 14": base_with(JUDGED, shape_score=(GENTLE,)),
    "penalty from 5, -1 at 10": base_with(JUDGED, shape_score=(STEEP,)),
    "no end costs 1": base_with(JUDGED, shape_score=(bind(missing_end_penalty, penalty=1.0),)),
    "KL .1 instead": base_with(JUDGED, loss_kl=KL(estimator=bind(k3), coef=0.1)),
}

if __name__ == "__main__":
    launch(
        AblateConfig(out="runs/ablate_length_penalty", warmup=DOTTED_WARMUP),
        partial(ablate, VARIANTS),
    )
