"""A reward model of real human preferences between answers (Fine-Grained RLHF, 2306.01693).

    python -m experiments.reward_qa_feedback --model ../shared/models/stories260K/hf

2,616 strict preferences between four answers to each of 500 questions; 100 questions (530 pairs)
are held out, the others train as rankings of four. The judges read passages of thousands of tokens
and looked for false and missing facts; this model reads the question and the first 256 tokens, with
a vocabulary of 512 and 260 K parameters that have seen children's stories. Held-out accuracy at
seed 0: .526, where the best rule of length alone reaches .503. With 530 pairs a standard error is
.022: neither is told apart from chance. It shows the path of real data, not a usable judge; the
first-listed answer is preferred in .603 of the pairs, which no reader of texts can see. Under
fifteen minutes on two CPU cores (260 seconds of processor time).
"""

from experiments import grpo_stories
from experiments.launch import launch
from rlhf_jax.bind import bind
from rlhf_jax.data.qa_feedback import qa_feedback
from rlhf_jax.loops.reward_model import RewardModelConfig, run
from rlhf_jax.train.optim import OptimConfig

FEEDBACK = bind(qa_feedback, path="../shared/data/qa_feedback/dev_feedback.json")
CONFIG = RewardModelConfig(
    out="runs/reward_qa_feedback",
    model=grpo_stories.CONFIG.model,
    rankings=FEEDBACK.replace(part="train", ranked=True),
    held_out=FEEDBACK.replace(part="held_out"),
    num_steps=100,
    batch_rows=8,
    micro_rows=4,
    max_tokens=256,
    over_long="right",
    optim=OptimConfig(learning_rate=3e-4, warmup_updates=10, schedule="cosine"),
)

if __name__ == "__main__":
    launch(CONFIG, run)
