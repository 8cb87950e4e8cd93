"""PPO with four models (2203.02155, 2403.17031): policy, reference, reward model, critic.

    python -m experiments.sample_stories --model ../shared/models/stories260K/hf
    python -m experiments.reward_stories --model ../shared/models/stories260K/hf
    python -m experiments.ppo_reward_model_stories --model ../shared/models/stories260K/hf

`ppo_stories`, but the score is that of the reward model of `reward_stories`, frozen, and the critic
begins as a copy of it. The score that the reward model was trained to imitate, VADER, is reported
as watch/vader and never trained on: it should rise with the learned one.
"""

from dataclasses import replace

from experiments import ppo_stories
from experiments.launch import launch
from rlhf_jax.algorithms.ppo import ppo
from rlhf_jax.bind import bind
from rlhf_jax.loops.online import run
from rlhf_jax.rewards.learned import learned
from rlhf_jax.rewards.sentiment import vader

REWARD_MODEL = "runs/reward_stories/reward_model"
CONFIG = replace(
    ppo_stories.CONFIG,
    out="runs/ppo_reward_model_stories",
    # the learned score has unit deviation; what is beyond five is no longer a story's
    objective=ppo(score_limit=5.0),
    rewards=(bind(learned, model=REWARD_MODEL),),
    watch=(bind(vader),),
    critic_from=REWARD_MODEL,
)

if __name__ == "__main__":
    launch(CONFIG, run)
