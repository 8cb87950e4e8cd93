"""Inputs that nobody means to give: each is refused by name, or gives the number it should."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

from rlhf_jax.advantages import gae_advantages
from rlhf_jax.algorithms.dpo import dpo
from rlhf_jax.algorithms.preference import pair_labels
from rlhf_jax.algorithms.preference_unpaired import (
    UnpairedObjective,
    unpaired_labels,
    unpaired_loss,
)
from rlhf_jax.bind import bind
from rlhf_jax.data.comparisons import bt_pairs, read_samples
from rlhf_jax.errors import ConfigError
from rlhf_jax.losses.kl import KL, k3, with_gradient
from rlhf_jax.losses.preference_unpaired import bco_unpaired, class_shift
from rlhf_jax.ops.groups import group_centred, group_normalise
from rlhf_jax.ops.totals import metric_values
from rlhf_jax.rewards.compose import score_completions, score_steps
from rlhf_jax.train.reference import cached_logprobs


def test_group_ids_out_of_range_are_not_taken_for_equal_scores():
    score_B = jnp.array([1.0, 2.0, 3.0, 6.0])
    assert np.isnan(group_centred(score_B, jnp.array([7, 7, 7, 7]))).all()
    np.testing.assert_array_equal(
        group_centred(score_B, jnp.array([-1, -1, 0, 0])), [np.nan, np.nan, -1.5, 1.5]
    )
    left_out_B = jnp.array([True, True, False, False])  # where it is not valid an id says nothing
    centred_B = group_centred(score_B, jnp.array([0, 0, -1, 9]), valid_B=left_out_B)
    np.testing.assert_array_equal(centred_B, [-0.5, 0.5, 0, 0])


def test_scores_in_half_precision_are_normalised_in_float32():
    one, two = (
        group_normalise(jnp.array([100, 200, 300, 600], kind), jnp.zeros(4, int), ddof=0, eps=1e-6)
        for kind in (jnp.float16, jnp.float32)
    )
    np.testing.assert_allclose(one, two)


def test_gae_of_whole_rewards():
    whole_BT, value_BT = jnp.array([[0, 0, 1]]), jnp.array([[0.5, 0.6, 0.7]])
    advantage_BT = gae_advantages(whole_BT, value_BT, jnp.ones((1, 3), bool), gamma=1, lam=0.95)
    np.testing.assert_allclose(advantage_BT, [[0.46575, 0.385, 0.3]], rtol=1e-6)


def test_labels_of_0_and_1_are_labels():
    objective = UnpairedObjective(loss=bind(bco_unpaired, beta=0.1), statistic=class_shift)
    logp_B, ref_B = jnp.array([-1.0, -2, -3, -5]), jnp.array([-2.0, -2, -4, -4])
    seen = []
    for kind in (bool, int):
        label_B = jnp.array([1, 0, 1, 0]).astype(kind)
        labels = unpaired_labels(objective, label_B, logp_B=logp_B, logp_ref_B=ref_B)
        seen.append(metric_values(unpaired_loss(objective, logp_B, ref_B, label_B, labels)[1]))
    assert seen[0] == seen[1]


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e30])
def test_the_scale_of_pair_weights_does_not_matter(scale):
    labels = pair_labels(dpo(), jnp.ones((2, 2), int), weight_B=jnp.array([1.0, 3.0]) * scale)
    np.testing.assert_allclose(labels.weight_B, [0.25, 0.75], rtol=1e-6)


def test_half_a_with_gradient_is_refused():
    with pytest.raises(ConfigError, match=r"missing a required .*argument: 'gradient'"):
        KL(estimator=bind(with_gradient, value=k3), coef=0.1)


@pytest.mark.parametrize("byte", [991, 993])  # says "encrypted"; names another compression
def test_a_cache_with_a_flipped_bit_is_made_anew(tmp_path, byte):
    def ask():
        return [np.ones((3, 2), np.float32)]

    cached_logprobs(tmp_path, {"a": 1}, ask)
    (file,) = tmp_path.glob("*.npz")
    data = bytearray(file.read_bytes())
    data[byte] ^= 1
    file.write_bytes(data)
    np.testing.assert_array_equal(cached_logprobs(tmp_path, {"a": 1}, ask), ask())


def test_a_cache_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"reference_cache=.*file.* cannot be written"):
        cached_logprobs(tmp_path / "file" / "x", {}, lambda: [np.ones(2)])


@pytest.mark.parametrize("score", [float("nan"), float("inf"), "high", True, 10**400])
def test_samples_with_a_score_that_is_no_number_are_refused(tmp_path, score):
    row = {"prompt": "p", "completions": ["a", "b"], "completion_ids": [[1], [2]]}
    row |= {"scores": [0.5, score], "ended": [True, True]}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(ConfigError, match=r"rows\.jsonl: row 0, completion 1: score"):
        read_samples(tmp_path)


def test_a_negative_seed_of_pairs_is_refused():
    with pytest.raises(ConfigError, match="seed=-1"):
        bt_pairs([], temperature=1.0, seed=-1)


def test_a_score_whose_square_float32_cannot_hold_is_refused():
    def wild(prompts, completions, rows):
        return [1e20]

    with pytest.raises(ConfigError, match="wild, row 0: the score is 1e"):
        score_completions([wild], None, ["p"], ["c"], [{}])


def test_a_process_reward_that_gives_a_number_a_row_is_refused():
    def counts(prompts, completions, rows):
        return [5]

    with pytest.raises(ConfigError, match="counts, row 0 is 5, not a list"):
        score_steps(counts, ["p"], ["completion"], [{}])
