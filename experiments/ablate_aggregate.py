"""What a long answer's tokens weigh: aggregation, on sums with dots before the answer.

    python -m experiments.ablate_aggregate

Sequence means (2402.03300) give each token of a long answer less, so long wrong answers are
punished less; token means (2503.14476) and a constant length (2503.20783) do not.
"""

from functools import partial

from experiments.ablate import AblateConfig, ablate, base_with
from experiments.ablate_dots import DOTTED, DOTTED_WARMUP
from experiments.launch import launch
from rlhf_jax.bind import bind
from rlhf_jax.losses.aggregate import constant_length, sequence_sum, token_mean

VARIANTS = {
    "sequence mean": DOTTED,
    "token mean": base_with(DOTTED, aggregate=bind(token_mean)),
    "constant length": base_with(DOTTED, aggregate=bind(constant_length, length=14)),
    "sequence sum": base_with(DOTTED, aggregate=bind(sequence_sum)),
}

if __name__ == "__main__":
    launch(
        AblateConfig(out="runs/ablate_aggregate", warmup=DOTTED_WARMUP), partial(ablate, VARIANTS)
    )
