"""A critic or the group as a baseline, at equal compute.

    python -m experiments.ablate_critic

In passes of the decoder over an answer, forward 1 and backward 2: drawing 1, scoring the old policy
1, the update 3; a critic of the same size adds 1 to score and 3 to update. So GRPO's 60 steps cost
what PPO's 33 do, of as many answers each. No KL in either. PPO as an update of one answer a prompt
sees eight times the prompts.
"""

from dataclasses import replace
from functools import partial

from experiments.ablate import BASE, AblateConfig, ablate
from experiments.launch import launch
from rlhf_jax.algorithms.ppo import ppo
from rlhf_jax.train.optim import OptimConfig

DRAW, SCORE, UPDATE = 1, 1, 3
GROUP, CRITIC = DRAW + SCORE + UPDATE, DRAW + 2 * SCORE + 2 * UPDATE
PPO = replace(
    BASE,
    objective=ppo(kl_coef=None),
    critic_optim=OptimConfig(learning_rate=1e-3, warmup_updates=10),
    num_steps=round(BASE.num_steps * GROUP / CRITIC),
)
VARIANTS = {
    "group of 8": BASE,
    "critic, groups of 8": PPO,
    "critic, one answer a prompt": replace(
        PPO, num_prompts=256, sampling=replace(BASE.sampling, num_samples=1)
    ),
    "critic, steps as the group": replace(PPO, num_steps=BASE.num_steps),
}

if __name__ == "__main__":
    launch(AblateConfig(out="runs/ablate_critic"), partial(ablate, VARIANTS))
