"""The quickstart in seconds, and slow enough between checkpoints to be interrupted."""

import time

from experiments import quickstart
from experiments.launch import launch
from rlhf_jax.bind import bind
from rlhf_jax.models.config import DecoderShape
from rlhf_jax.rollout.sampler import SamplingConfig
from rlhf_jax.train.checkpoint import CheckpointConfig
from rlhf_jax.types import replace


def patient_digits(prompts, completions, rows):
    """The share of digits: even a decoder that has learnt nothing is told apart from another."""
    time.sleep(0.05)
    return [sum(c.isdigit() for c in text) / max(len(text), 1) for text in completions]


SIZES = dict(warmup=32, rl=16, held_out=8)
CONFIG = quickstart.QuickstartConfig(
    warmup=replace(
        quickstart.WARMUP,
        demonstrations=quickstart.WARMUP.demonstrations.replace(**SIZES),
        decoder=DecoderShape(num_layers=1, d_model=16, d_ff=32, max_positions=16),
        num_steps=20,
        batch_rows=16,
        micro_rows=8,
        optim=replace(quickstart.WARMUP.optim, learning_rate=2e-2, warmup_updates=0),
        checkpoint=CheckpointConfig(every=2),
    ),
    rl=replace(
        quickstart.RL,
        prompts=quickstart.RL.prompts.replace(**SIZES),
        rewards=(bind(patient_digits),),
        num_steps=10,
        num_prompts=4,
        sampling=SamplingConfig(num_samples=2, max_new_tokens=3, max_prompt_tokens=7),
        minibatch_rows=4,
        evaluation=replace(quickstart.RL.evaluation, every=3),
        checkpoint=CheckpointConfig(every=2),
        samples_every=1,
    ),
)

if __name__ == "__main__":
    launch(CONFIG, quickstart.main)
