"""How many answers to how many prompts, of 256 answers a step: group size.

    python -m experiments.ablate_group

Large groups have a better baseline and mixed outcomes more often, small ones see more prompts.
"""

from dataclasses import replace
from functools import partial

from experiments.ablate import BASE, AblateConfig, ablate
from experiments.launch import launch

ROWS = 256


def answers(size: int):
    """The base with groups of this size."""
    sampling = replace(BASE.sampling, num_samples=size)
    return replace(BASE, num_prompts=ROWS // size, sampling=sampling)


VARIANTS = {f"{ROWS // size} x {size}": answers(size) for size in (8, 2, 4, 16, 32, 64)}

if __name__ == "__main__":
    launch(AblateConfig(out="runs/ablate_group"), partial(ablate, VARIANTS))
