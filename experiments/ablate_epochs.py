"""How often a rollout is learnt from: μ passes, and updates in each.

    python -m experiments.ablate_epochs

The number of answers drawn is the same for all; more updates on them are further from the policy
that drew them. "1 x 1" is on-policy: every ratio is 1.
"""

from dataclasses import replace
from functools import partial

from experiments.ablate import BASE, AblateConfig, ablate
from experiments.launch import launch

VARIANTS = {
    "1 x 1": replace(BASE, minibatch_rows=None),
    "1 x 2": BASE,
    "1 x 4": replace(BASE, minibatch_rows=64),
    "2 x 2": replace(BASE, num_epochs=2),
    "4 x 2": replace(BASE, num_epochs=4),
    "8 x 2": replace(BASE, num_epochs=8),
}

if __name__ == "__main__":
    launch(AblateConfig(out="runs/ablate_epochs"), partial(ablate, VARIANTS))
