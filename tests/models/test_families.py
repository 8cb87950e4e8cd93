"""Every family: logits and greedy ids as torch computed them, padded, cached, there and back.

What torch computed is in golden_families.npz, so that all tests but one run without it.
"""

import json
from functools import cache

import checkpoints
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from checkpoints import CASES, NEW_TOKENS, texts
from safetensors.numpy import load_file, save_file

from rlhf_jax.errors import ConfigError
from rlhf_jax.models.convert import export_pretrained, load_pretrained
from rlhf_jax.models.families import FAMILIES
from rlhf_jax.models.options import axis_sizes, decoder_config, hf_config
from rlhf_jax.models.reward import (
    RewardNotes,
    export_reward_model,
    forward_scores,
    load_reward_model,
)
from rlhf_jax.models.rope import Rope
from rlhf_jax.models.tokenizer import byte_tokenizer
from rlhf_jax.models.transformer import Model
from rlhf_jax.rollout.sampler import SamplingConfig, make_sampler
from rlhf_jax.types import replace

WIDTH = max(checkpoints.LENGTHS)
REWARD_CASES = ("mistral", "qwen2", "qwen3", "gemma2", "gemma3", "phi3", "gpt2")


def family_and_config(name):
    family = FAMILIES[CASES[name]["model_type"]]
    return family, decoder_config(family, CASES[name], name, None)


def write_checkpoint(folder, name):
    """The folder of a case, without torch."""
    family, config = family_and_config(name)
    sizes = axis_sizes(config, config.vocab_size)
    tensors = {
        tensor: checkpoints.weight(tensor, rule.file_shape(sizes))
        for rule in family.rules(config)
        for tensor in rule.names(config.num_layers)
    }
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CASES[name]))
    return folder


def padded():
    """The longer text, and the shorter one padded left and right: ids_BT, attend_BT."""
    long, short = texts()
    gap = WIDTH - len(short)
    ids = [long, np.pad(short, (gap, 0)), np.pad(short, (0, gap))]
    real = np.arange(WIDTH)
    attend = [real >= 0, real >= gap, real < len(short)]
    return np.stack(ids), np.stack(attend)


@cache
def logits_fn(config):
    model = Model(config)
    return jax.jit(lambda params, *batch: model.logits(params, model.hidden(params, *batch)))


@pytest.fixture(scope="module")
def golden():
    with np.load(checkpoints.GOLDEN) as arrays:
        return dict(arrays)


@pytest.fixture(scope="module", params=CASES)
def case(request, tmp_path_factory):
    """name, folder, config, parameters."""
    folder = write_checkpoint(tmp_path_factory.mktemp("case") / "hf", request.param)
    return request.param, folder, *load_pretrained(folder)


def test_logits_padded_on_either_side(case, golden):
    name, _, config, params = case
    ids_BT, attend_BT = padded()
    logits_BTV = np.asarray(logits_fn(config)(params, ids_BT, attend_BT))
    for row, text in enumerate((0, 1, 1)):
        np.testing.assert_allclose(
            logits_BTV[row, attend_BT[row]][:, ::13], golden[f"{name}/logits_{text}"], atol=1e-4
        )


def test_cached_greedy_ids(case, golden):
    """Two left-padded prompts of different lengths, beyond the windows of those that have one."""
    name, _, config, params = case
    ids_BT, attend_BT = padded()
    sampling = SamplingConfig(
        num_samples=1, max_new_tokens=NEW_TOKENS, max_prompt_tokens=WIDTH, temperature=0
    )
    # the loop over stacked layers serves accelerators, the other CPUs: both are tried
    model = Model(config, unroll_decode=len(name) % 2 == 0)
    sample = make_sampler(model, sampling, end_ids=(), pad_id=0)
    rollout = sample(params, ids_BT[:2], attend_BT[:2], np.arange(2), jax.random.key(0))
    expected_PR = np.stack([golden[f"{name}/greedy_{n}"] for n in range(2)])
    np.testing.assert_array_equal(rollout.tokens_BT[:, WIDTH:], expected_PR)


def test_export_is_the_checkpoint_again(case, tmp_path):
    _, folder, config, params = case
    export_pretrained(tmp_path / "policy", config, params, byte_tokenizer())
    before = load_file(folder / "model.safetensors")
    after = load_file(tmp_path / "policy" / "model.safetensors")
    assert after.keys() == before.keys()
    for tensor, x in before.items():
        np.testing.assert_array_equal(after[tensor], x)
    assert load_pretrained(tmp_path / "policy")[0] == config


def test_transformers_agrees(case, tmp_path):
    """Its own folder loads here; our export loads there: the same logits and greedy text."""
    pytest.importorskip("torch", reason="transformers needs torch to run a model")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    name, _, config, params = case
    judge = checkpoints.judge(name)
    judge.save_pretrained(tmp_path / "theirs")
    config, params = load_pretrained(tmp_path / "theirs")
    assert config == case[2]
    ids_BT, attend_BT = padded()
    expected_BTV = checkpoints.judged_logits(judge, ids_BT, attend_BT)
    logits_BTV = np.asarray(logits_fn(config)(params, ids_BT, attend_BT))
    np.testing.assert_allclose(logits_BTV[attend_BT], expected_BTV[attend_BT], atol=1e-4)

    export_pretrained(tmp_path / "ours", config, params, byte_tokenizer())
    again = AutoModelForCausalLM.from_pretrained(
        tmp_path / "ours", local_files_only=True, attn_implementation="eager"
    )
    found_BTV = checkpoints.judged_logits(again, ids_BT, attend_BT)
    np.testing.assert_allclose(found_BTV[attend_BT], expected_BTV[attend_BT], atol=1e-5)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "ours", local_files_only=True)
    for ids_T in texts():
        texts_of = [tokenizer.decode(checkpoints.judged_greedy(m, ids_T)) for m in (judge, again)]
        assert texts_of[0] == texts_of[1]


@pytest.mark.parametrize("case", REWARD_CASES, indirect=True)
def test_transformers_reads_its_reward_model(case, tmp_path):
    """The same trunk with a scalar head, in the family's own layout and architecture."""
    torch = pytest.importorskip("torch", reason="transformers needs torch to run a model")
    from transformers import AutoModelForSequenceClassification

    _, _, config, params = case
    trunk = {key: value for key, value in params.items() if key != "head"}
    w_D = jnp.linspace(-1, 1, config.d_model)
    head = {"w_D": w_D, "b": np.float32(0.5)}
    notes = RewardNotes(max_tokens=WIDTH)
    export_reward_model(tmp_path, config, {"trunk": trunk, "head": head}, byte_tokenizer(), notes)
    ids_T = texts()[0]
    loaded = load_reward_model(tmp_path)
    ours = forward_scores(loaded.model, loaded.params, ids_T[None], np.ones((1, len(ids_T)), bool))
    judge = AutoModelForSequenceClassification.from_pretrained(
        tmp_path, local_files_only=True, attn_implementation="eager"
    )
    with torch.no_grad():
        theirs = judge(input_ids=torch.from_numpy(ids_T[None])).logits[0, 0].item()
    np.testing.assert_allclose(ours[0] - 0.5, theirs, atol=1e-4)


# What a family cannot be


@pytest.mark.parametrize(
    ("name", "option", "value", "message"),
    [
        ("gemma2", "use_bidirectional_attention", True, "use_bidirectional_attention=True"),
        ("gemma3", "attn_logit_softcapping", 50.0, "attn_logit_softcapping=50.0"),
        ("gemma3", "layer_types", ["full_attention"], "layer_types=.* list of 5"),
        ("gemma3", "layer_types", ["chunked_attention"] * 5, "each 'full_attention' or 'sliding"),
        ("gemma3", "sliding_window", None, "sliding_window=None, but there are"),
        ("gemma3", "rope_parameters", {"rope_theta": 5.0}, "one for 'full_attention' and one for"),
        ("qwen2_window_yarn", "sliding_window", 0, "window=0 must be a whole number"),
        ("qwen2", "rope_scaling", {"type": "yarn"}, "rope_type='yarn': factor is missing"),
        ("phi3", "rope_scaling", {"type": "linear", "factor": 2.0}, "supported are default, longr"),
        ("phi3", "resid_pdrop", 0.1, "resid_pdrop=0.1"),
        ("phi3", "partial_rotary_factor", 0.75, "3 of 4 must be even"),
        ("phi3_longrope", "partial_rotary_factor", 0.5, "3 numbers for 2 rotated pairs"),
        ("gpt2", "scale_attn_by_inverse_layer_idx", True, "scale_attn_by_inverse_layer_idx=True"),
        ("gpt2", "n_head", 3, "3 heads do not divide a width of 16"),
        ("gpt2", "activation_function", "swish", "activation_function='swish' is not supported"),
    ],
)
def test_unsupported_option_is_named(name, option, value, message):
    raw = {**CASES[name], option: value}
    with pytest.raises(ConfigError, match=message):
        decoder_config(FAMILIES[raw["model_type"]], raw, "config.json", None)


@pytest.mark.parametrize(
    ("name", "changes", "says"),
    [
        ("llama2", {"window": 4}, "a checkpoint of llama cannot say window=4"),
        ("qwen2", {"qk_norm": True, "qkv_bias": False}, "qwen2 cannot say qk_norm=True, qkv_bias"),
        ("gpt2", {"rope": Rope(), "head_dim": 2}, "gpt2 cannot say head_dim=2, rope="),
        ("gemma3", {"rope_local": None}, "gemma3_text cannot say rope_local=None"),
    ],
)
def test_export_refuses_what_the_family_has_no_option_for(tmp_path, name, changes, says):
    config = replace(family_and_config(name)[1], **changes)
    with pytest.raises(ConfigError, match=says):
        export_pretrained(tmp_path / "x", config, {"w": np.zeros(1)}, byte_tokenizer())
    assert not (tmp_path / "x").exists()


# Options left out of config.json


def test_patterns_of_layers():
    def local(name, **options):
        raw = {**CASES[name], "num_hidden_layers": 8, "layer_types": None, **options}
        return decoder_config(FAMILIES[raw["model_type"]], raw, "raw", None).local_layers

    assert local("gemma2") == (True, False) * 4
    assert local("gemma3") == (*[True] * 5, False, True, True)
    assert local("gemma3", sliding_window_pattern=4) == (True, True, True, False) * 2
    assert local("qwen2_window_yarn", max_window_layers=6) == (*[False] * 6, True, True)
    assert local("mistral") is None


def test_one_kind_of_layer_needs_no_pattern(tmp_path):
    """Gemma layers that are all local turn as local ones, and all global as global ones."""
    family = FAMILIES["gemma3_text"]
    for kind, window, theta in (("sliding_attention", 4, 50.0), ("full_attention", None, 500.0)):
        raw = {**CASES["gemma3"], "layer_types": [kind] * 5, "rope_scaling": None}
        config = decoder_config(family, raw, "raw", None)
        assert (config.window, config.rope, config.local_layers) == (
            window,
            Rope(theta=theta),
            None,
        )
        assert hf_config(family, config, "float32")["layer_types"] == [kind] * 5


def test_trunk_saved_without_its_prefix(tmp_path):
    """As the first GPT-2 was published: bare names, and its causal masks among them."""
    folder = write_checkpoint(tmp_path / "hf", "gpt2")
    whole = load_pretrained(folder)[1]
    tensors = load_file(folder / "model.safetensors")
    bare = {name.removeprefix("transformer."): x for name, x in tensors.items()}
    bare["h.0.attn.bias"] = np.ones((1, 1, 4, 4), np.float32)
    save_file(bare, folder / "model.safetensors")
    jax.tree.map(np.testing.assert_array_equal, load_pretrained(folder)[1], whole)
    bare["h.0.attn.c_attn.bias"] = bare["h.0.attn.c_attn.bias"][:-1].copy()
    save_file(bare, folder / "model.safetensors")
    with pytest.raises(ConfigError, match=r"safetensors: h.0.attn.c_attn.bias has shape \[47\]"):
        load_pretrained(folder)
