"""KTO (2402.01306) on single continuations, each desirable or not: no pairs.

    python -m experiments.sample_stories --model ../shared/models/stories260K/hf
    python -m experiments.kto_stories --model ../shared/models/stories260K/hf

A continuation is desirable from a VADER score of .7, the median. A quarter of the rows is seen, so
the reference scores what a step needs instead of all rows beforehand.
"""

from dataclasses import replace

from experiments import dpo_stories
from experiments.launch import launch
from rlhf_jax.algorithms.kto import kto
from rlhf_jax.bind import bind
from rlhf_jax.data.comparisons import sampled_unpaired
from rlhf_jax.loops.preference import run

LABELS = bind(sampled_unpaired, samples="runs/sample_stories", threshold=0.7)
CONFIG = replace(
    dpo_stories.CONFIG,
    out="runs/kto_stories",
    objective=kto(beta=0.1),
    preferences=LABELS.replace(part="train"),
    held_out=LABELS.replace(part="held_out"),
    precompute_reference=False,
)

if __name__ == "__main__":
    launch(CONFIG, run)
