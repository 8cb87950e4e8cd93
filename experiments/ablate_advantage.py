"""What a score is measured against, and whether it is scaled: the group's advantage.

    python -m experiments.ablate_advantage

GRPO divides by the group's deviation (2402.03300), Dr. GRPO does not (2503.20783), RLOO leaves the
row itself out of its baseline (2402.14740), REINFORCE++ whitens over the batch (2501.03262).
"""

from functools import partial

from experiments.ablate import BASE, AblateConfig, ablate, base_with
from experiments.launch import launch
from rlhf_jax.advantages import group_centre, leave_one_out, leave_one_out_norm, reward_to_go
from rlhf_jax.bind import bind
from rlhf_jax.ops.masked import whiten

VARIANTS = {
    "group mean and std": BASE,
    "group mean": base_with(advantage=bind(group_centre)),
    "leave one out": base_with(advantage=bind(leave_one_out)),
    "leave one out and std": base_with(advantage=bind(leave_one_out_norm)),
    "group mean, whitened": base_with(advantage=bind(group_centre), whiten=bind(whiten)),
    "no baseline, whitened": base_with(advantage=bind(reward_to_go), whiten=bind(whiten)),
    "no baseline": base_with(advantage=bind(reward_to_go)),
}

if __name__ == "__main__":
    launch(AblateConfig(out="runs/ablate_advantage"), partial(ablate, VARIANTS))
