"""Reward models on disk and in use: there and back, any padding, and transformers as the judge."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from safetensors.numpy import load_file
from tiny import random_params

from rlhf_jax.errors import ConfigError
from rlhf_jax.models.config import DecoderConfig
from rlhf_jax.models.convert import export_pretrained
from rlhf_jax.models.reward import (
    NOTES,
    RewardNotes,
    begin_reward_model,
    cut_judged,
    encode_judged,
    export_reward_model,
    forward_scores,
    is_reward_model,
    load_reward_model,
    read_trunk_config,
)
from rlhf_jax.models.tokenizer import Tokenizer, byte_tokenizer
from rlhf_jax.models.transformer import Model
from rlhf_jax.parallel.mesh import MeshConfig, make_mesh
from rlhf_jax.parallel.sharding import shard_rows

CONFIG = DecoderConfig(
    vocab_size=259, num_layers=2, d_model=32, num_heads=8, num_kv_heads=4, head_dim=4, d_ff=32
)
MODEL = Model(CONFIG)
NOTES_GIVEN = RewardNotes(max_tokens=12, over_long="left", gain=0.5, bias=-0.25)
IDS = [[1, 70, 80, 2], [1, 90, 2, 75, 2, 71, 2], [1, 65, 2]]
WIDTH = 9


@pytest.fixture(scope="module")
def params():
    head = {"w_D": jnp.linspace(-1.0, 1.0, 32), "b": jnp.float32(0.7)}
    return {"trunk": random_params(MODEL, 0), "head": head}


@pytest.fixture(scope="module")
def folder(params, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "reward"
    export_reward_model(folder, CONFIG, params, byte_tokenizer(), NOTES_GIVEN)
    return folder


@pytest.fixture(scope="module")
def expected(params):
    """Each row alone, without any padding."""
    return [forward_scores(MODEL, params, *alone(ids)).item() for ids in IDS]


def alone(ids):
    return jnp.asarray([ids]), jnp.ones((1, len(ids)), bool)


def padded(where, pad_id):
    """IDS in one rectangle, their padding on the left, on the right or on both sides."""
    tokens = np.full((len(IDS), WIDTH), pad_id)
    attend = np.zeros((len(IDS), WIDTH), bool)
    for b, ids in enumerate(IDS):
        start = {"left": WIDTH - len(ids), "right": 0, "both": 1}[where]
        tokens[b, start : start + len(ids)] = ids
        attend[b, start : start + len(ids)] = True
    return jnp.asarray(tokens), jnp.asarray(attend)


@pytest.mark.parametrize("pad_id", [0, 2])  # 2 is the end
@pytest.mark.parametrize("where", ["left", "right", "both"])
def test_padding_changes_no_score(params, expected, where, pad_id):
    score_B = forward_scores(MODEL, params, *padded(where, pad_id))
    np.testing.assert_allclose(score_B, expected, rtol=1e-5, atol=1e-6)
    assert np.ptp(expected) > 0.1


def test_there_and_back(folder, params):
    model, found, notes = load_reward_model(folder)
    assert notes == NOTES_GIVEN
    assert model == MODEL
    jax.tree.map(np.testing.assert_array_equal, found, params)
    assert load_file(folder / "model.safetensors")["score.weight"].shape == (1, 32)


def test_on_a_mesh(folder, expected):
    mesh = make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
    model, params, _ = load_reward_model(folder, mesh=mesh)
    tokens, attend = (jnp.tile(x, (4, 1)) for x in padded("right", 0))
    with jax.set_mesh(mesh):
        run = jax.jit(lambda *args: forward_scores(model, *args, mesh=mesh))
        score_B = run(params, *shard_rows(mesh, (tokens, attend)))
    np.testing.assert_allclose(score_B, expected * 4, rtol=1e-5, atol=1e-6)
    assert params["trunk"]["layers"]["mlp"]["gate_NDF"].sharding.spec == P(None, "fsdp", "tensor")


@pytest.mark.parametrize("tied", [True, False])
def test_a_language_model_lends_its_trunk(tied, tmp_path):
    config = DecoderConfig(
        **{name: getattr(CONFIG, name) for name in ("vocab_size", "num_layers", "d_model", "d_ff")},
        **{name: getattr(CONFIG, name) for name in ("num_heads", "num_kv_heads", "head_dim")},
        tie_embeddings=tied,
    )
    policy = random_params(Model(config), 0)
    export_pretrained(tmp_path / "policy", config, policy, byte_tokenizer())
    assert not is_reward_model(tmp_path / "policy")
    model, params = begin_reward_model(tmp_path / "policy", jax.random.key(0))
    assert read_trunk_config(tmp_path / "policy") == model.config
    # what is counted, trained and saved is what is read: no head over the vocabulary
    assert jax.tree.structure(params["trunk"]) == jax.tree.structure(model.abstract())
    export_reward_model(tmp_path / "r", model.config, params, byte_tokenizer(), NOTES_GIVEN)
    assert is_reward_model(tmp_path / "r")
    assert read_trunk_config(tmp_path / "r") == model.config
    again = begin_reward_model(tmp_path / "r", jax.random.key(1))[1]
    jax.tree.map(np.testing.assert_array_equal, again, params)


def test_a_folder_of_another_trainer(folder, tmp_path):
    for file in folder.iterdir():
        if file.name != NOTES:
            (tmp_path / file.name).write_bytes(file.read_bytes())
    _, params, notes = load_reward_model(tmp_path)
    assert params["head"]["b"] == 0 and notes.max_tokens is None


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("config.json", {"architectures": ["LlamaForCausalLM"]}, "is not a reward model.*CausalLM"),
        ("config.json", {"id2label": {"0": "a", "1": "b"}}, "2 labels; a reward model has one"),
        ("config.json", {"num_labels": 3}, "3 labels"),
        ("config.json", {"model_type": "lama"}, "supported are .*llama"),
        (NOTES, {"gain": None}, "gain=None is not a finite number"),
        (NOTES, {"gian": 1.0}, "unknown: gian"),
        (NOTES, {"max_tokens": 1}, "max_tokens=1 is outside"),
    ],
)
def test_a_folder_that_is_none(folder, tmp_path, file, change, message):
    for source in folder.iterdir():
        (tmp_path / source.name).write_bytes(source.read_bytes())
    raw = json.loads((tmp_path / file).read_text())
    (tmp_path / file).write_text(json.dumps({**raw, **change}))
    with pytest.raises(ConfigError, match=message):
        load_reward_model(tmp_path)
    with pytest.raises(ConfigError, match="is not a folder"):
        load_reward_model(tmp_path / "none")


def test_every_text_is_closed_once():
    tokenizer = byte_tokenizer()
    assert encode_judged(tokenizer, "ab", "c") == ([1, 100, 101], [102, 2])
    assert encode_judged(tokenizer, "ab", "") == ([1, 100, 101], [2])


def test_a_completion_is_read_as_it_follows_its_prompt(stories_folder):
    """Encoded alone, " girl" would open with a space of its own: ▁ ▁g ir l."""
    tokenizer = Tokenizer.from_folder(stories_folder / "hf")
    for prompt, completion in (("there was a little", " girl."), ("Tom said", "\nHi"), ("a", "")):
        asked, answer = encode_judged(tokenizer, prompt, completion)
        assert asked == tokenizer.encode(prompt)
        assert asked + answer == [*tokenizer.encode(prompt + completion), tokenizer.eos_id]


@pytest.mark.parametrize(
    ("side", "max_tokens", "expected"),
    [
        ("error", 7, [1, 10, 11, 20, 21, 22, 2]),
        ("left", 5, [11, 20, 21, 22, 2]),
        ("left", 4, None),
        ("right", 5, [1, 10, 11, 20, 2]),  # the end token stays: the head reads it
        ("right", 4, None),
    ],
)
def test_cutting(side, max_tokens, expected):
    found = cut_judged([1, 10, 11], [20, 21, 22, 2], max_tokens, side)
    assert (found and found[0] + found[1]) == expected


def test_an_empty_completion_that_fits_is_judged():
    assert cut_judged([1, 10], [2], 3, "right") == ([1, 10], [2])
    assert cut_judged([], [5, 2], 3, "left") == ([], [5, 2])


def test_transformers_gives_the_score_less_the_bias(folder, params, expected):
    torch = pytest.importorskip("torch", reason="transformers needs torch to run a model")
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    assert model.config.num_labels == 1 and model.config.pad_token_id == 0
    tokens, attend = padded("right", 0)
    with torch.no_grad():
        batch = [torch.from_numpy(np.array(x)) for x in (tokens, attend)]
        found = model(batch[0], attention_mask=batch[1].long()).logits[:, 0].numpy()
    bias = float(params["head"]["b"])
    np.testing.assert_allclose(found + bias, expected, rtol=1e-4, atol=1e-5)

    # through its own pipeline, on a text whose tokens end as ours do
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, split_special_tokens=False)
    pipe = transformers.pipeline("text-classification", model=model, tokenizer=tokenizer)
    said = pipe("ab" + "<eos>")[0]
    assert tokenizer("ab<eos>").input_ids == [1, 100, 101, 2]
    ours = forward_scores(MODEL, params, *alone([1, 100, 101, 2])).item()
    assert said["label"] == "reward" and said["score"] + bias == pytest.approx(ours, rel=1e-4)


def test_transformers_refuses_rather_than_misreads_where_pad_is_end(folder, params, tmp_path):
    """Its search for the last id that is not the pad would stop before the end token."""
    torch = pytest.importorskip("torch", reason="transformers needs torch to run a model")
    transformers = pytest.importorskip("transformers")
    hf = transformers.AutoTokenizer.from_pretrained(folder)
    hf.pad_token = hf.eos_token
    export_reward_model(tmp_path / "r", CONFIG, params, Tokenizer(hf), NOTES_GIVEN)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "r")
    bias = float(params["head"]["b"])
    with torch.no_grad():
        one = model(torch.tensor(IDS[:1])).logits.item()
        ours = forward_scores(MODEL, params, *alone(IDS[0])).item()
        assert one + bias == pytest.approx(ours, rel=1e-4)
        with pytest.raises(ValueError, match="batch sizes > 1"):
            model(torch.from_numpy(np.array(padded("right", 2)[0])))
