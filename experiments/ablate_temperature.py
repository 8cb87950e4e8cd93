"""How boldly answers are drawn: the sampler's temperature and filters.

    python -m experiments.ablate_temperature

The update is of the distribution at temperature 1 that the trainer scores; draws at another one are
off-policy, which no ratio here corrects (`correction` would). Evaluation is greedy throughout.
"""

from dataclasses import replace
from functools import partial

from experiments.ablate import BASE, AblateConfig, ablate
from experiments.launch import launch


def drawn(**options):
    """The base with answers drawn like this."""
    return replace(BASE, sampling=replace(BASE.sampling, **options))


VARIANTS = {
    "1": BASE,
    "0.6": drawn(temperature=0.6),
    "0.8": drawn(temperature=0.8),
    "1.2": drawn(temperature=1.2),
    "1.5": drawn(temperature=1.5),
    "1, top-p .9": drawn(top_p=0.9),
}

if __name__ == "__main__":
    launch(AblateConfig(out="runs/ablate_temperature"), partial(ablate, VARIANTS))
