"""The learned reward: texts read as in training, one program, folders read once and mesh-split."""

import json
import os
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny import random_params

from rlhf_jax.bind import bind
from rlhf_jax.errors import ConfigError
from rlhf_jax.models.config import DecoderConfig
from rlhf_jax.models.convert import export_pretrained
from rlhf_jax.models.reward import RewardNotes, export_reward_model, forward_scores
from rlhf_jax.models.tokenizer import byte_tokenizer
from rlhf_jax.models.transformer import Model
from rlhf_jax.parallel.mesh import MeshConfig, make_mesh
from rlhf_jax.rewards.compose import score_completions
from rlhf_jax.rewards.learned import learned

MODEL = Model(
    DecoderConfig(
        vocab_size=259, num_layers=1, d_model=16, num_heads=4, num_kv_heads=4, head_dim=4, d_ff=16
    )
)
PROMPTS = ["a", "bb", "a", "dd", "e"]
COMPLETIONS = ["one", "two", "", "fourth", "5"]


def write(folder, *, seed=0, over_long="error", max_tokens=12):
    head = {"w_D": jnp.linspace(-1.0, 1.0, 16), "b": jnp.float32(0.5)}
    params = {"trunk": random_params(MODEL, seed), "head": head}
    notes = RewardNotes(max_tokens=max_tokens, over_long=over_long)
    export_reward_model(folder, MODEL.config, params, byte_tokenizer(), notes)
    return params


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "reward"
    write(folder)
    return folder


def one_by_one(params):
    """Each text alone and unpadded: BOS, bytes, end."""
    scores = []
    for prompt, completion in zip(PROMPTS, COMPLETIONS, strict=True):
        ids = [1, *(3 + byte for byte in (prompt + completion).encode()), 2]
        row = jnp.asarray([ids]), jnp.ones((1, len(ids)), bool)
        scores.append(forward_scores(MODEL, params, *row).item())
    return scores


@pytest.fixture(scope="module")
def expected(folder, tmp_path_factory):
    return one_by_one(write(tmp_path_factory.mktemp("models") / "same"))


@pytest.mark.parametrize("batch_rows", [2, 64])
def test_scores_are_the_models(folder, expected, batch_rows):
    reward = bind(learned, model=str(folder), batch_rows=batch_rows)
    score_BC, valid_BC, _ = score_completions([reward], [2.0], PROMPTS, COMPLETIONS, [{}] * 5)
    assert valid_BC.all() and np.ptp(expected) > 0.1
    np.testing.assert_allclose(score_BC[:, 0], 2 * np.array(expected), rtol=1e-5, atol=1e-6)


def test_on_a_mesh(folder, expected):
    mesh = make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
    with jax.set_mesh(mesh):  # 3 texts a pass are made 4, which the mesh divides
        scores = learned(PROMPTS, COMPLETIONS, [], model=str(folder), batch_rows=3)
    np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-6)


def test_nothing_is_compiled_after_the_first_call(folder):
    count = [0]

    def event(name, duration, **kw):
        count[0] += name == "/jax/core/compile/backend_compile_duration"

    def call(n):
        learned(PROMPTS[:n], COMPLETIONS[:n], [], model=str(folder), batch_rows=4, max_tokens=11)
        return count[0]

    jax.monitoring.register_event_duration_secs_listener(event)
    try:
        first = call(1)
        assert first > 0, "the count counts nothing"
        assert [call(n) for n in (5, 3, 1)] == [first] * 3
    finally:
        jax.monitoring.unregister_event_duration_listener(event)


def test_a_folder_written_anew_is_read_anew(tmp_path):
    write(tmp_path / "r")
    before = learned(["a"], ["b"], [], model=str(tmp_path / "r"))
    write(tmp_path / "r", seed=1)
    later = time.time() + 1  # the clock of some file systems ticks slowly
    os.utime(tmp_path / "r" / "config.json", (later, later))
    assert learned(["a"], ["b"], [], model=str(tmp_path / "r")) != before


def test_long_texts(folder, tmp_path):
    texts = (["ab", "a" * 9, "a"], ["b" * 9, "b", "c" * 20])
    with pytest.raises(ConfigError, match=r"row 0 has 13 tokens, more than max_tokens=12"):
        learned(*texts, [], model=str(folder))
    write(tmp_path / "r", over_long="left")
    found = learned(*texts, [], model=str(tmp_path / "r"))
    # the third has a completion that leaves no room for a prompt: the function does not apply
    assert found[2] is None
    # BOS is what is cut off the first
    ids = [3 + byte for byte in b"ab" + b"b" * 9]
    row = jnp.asarray([[*ids, 2]]), jnp.ones((1, 12), bool)
    params = write(tmp_path / "same", over_long="left")
    assert found[0] == pytest.approx(forward_scores(MODEL, params, *row).item(), rel=1e-5)
    assert learned(["a"], ["b"], [], model=str(tmp_path / "r"), max_tokens=5) == pytest.approx(
        learned(["a"], ["b"], [], model=str(folder)), rel=1e-5
    )


def test_folders_that_are_none(folder, tmp_path):
    export_pretrained(tmp_path / "policy", MODEL.config, random_params(MODEL, 0), byte_tokenizer())
    with pytest.raises(ConfigError, match=r"policy is not a reward model: .*LlamaForCausalLM"):
        learned(["a"], ["b"], [], model=str(tmp_path / "policy"))
    with pytest.raises(ConfigError, match=r"none is not a folder"):
        learned(["a"], ["b"], [], model=str(tmp_path / "none"))
    write(tmp_path / "other")
    (tmp_path / "other" / "reward_model.json").unlink()
    with pytest.raises(ConfigError, match="says how long its rows were; give max_tokens"):
        learned(["a"], ["b"], [], model=str(tmp_path / "other"))
    # of another trainer: its bias is not known, so what is left is the score less ours
    alone = learned(["a"], ["b"], [], model=str(tmp_path / "other"), max_tokens=8)
    ours = learned(["a"], ["b"], [], model=str(folder))
    assert alone[0] + 0.5 == pytest.approx(ours[0], rel=1e-4)
    notes = {"head_bias": 0.5, "max_tokens": 8, "over_long": "none", "gain": 1.0, "bias": 0.0}
    (tmp_path / "other" / "reward_model.json").write_text(json.dumps(notes))
    with pytest.raises(ConfigError, match="over_long='none' is unknown"):
        learned(["a"], ["b"], [], model=str(tmp_path / "other"))
