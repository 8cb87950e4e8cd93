"""A real pretrained model decodes greedily, cached and left-padded, what torch wrote down."""

import jax
import numpy as np

from rlhf_jax.models.convert import load_pretrained
from rlhf_jax.models.transformer import Model
from rlhf_jax.rollout.sampler import SamplingConfig, make_sampler

NEW_TOKENS = 64


def test_three_prompts_in_one_batch_recite_the_golden_ids(stories_folder):
    config, params = load_pretrained(stories_folder / "hf")
    with np.load(stories_folder / "golden.npz") as golden:
        prompts = [golden[f"ids_{n}"] for n in range(3)]
        expected_PR = np.stack([golden[f"greedy_{n}"][-NEW_TOKENS:] for n in range(3)])
    width = max(map(len, prompts))
    tokens_PL = np.stack([np.pad(ids, (width - len(ids), 0)) for ids in prompts])
    attend_PL = np.arange(width) >= width - np.array([len(ids) for ids in prompts])[:, None]
    sampling = SamplingConfig(
        num_samples=1, max_new_tokens=NEW_TOKENS, max_prompt_tokens=width, temperature=0
    )
    sample = make_sampler(Model(config), sampling, end_ids=(), pad_id=0)
    rollout = sample(params, tokens_PL, attend_PL, np.arange(3), jax.random.key(0))
    np.testing.assert_array_equal(rollout.tokens_BT[:, width:], expected_PR)
