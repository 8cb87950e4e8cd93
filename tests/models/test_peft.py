"""Adapters in PEFT's format, there and back, and what is refused of a folder."""

import json

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tiny import random_params

from rlhf_jax.errors import ConfigError
from rlhf_jax.models.config import DecoderConfig
from rlhf_jax.models.lora import LoraConfig, adapter_shapes, init_adapters
from rlhf_jax.models.peft import export_adapters, in_peft_format, load_adapters
from rlhf_jax.models.transformer import Model
from rlhf_jax.types import replace

CONFIG = DecoderConfig(
    vocab_size=19, num_layers=2, d_model=12, num_heads=4, num_kv_heads=2, head_dim=4, d_ff=20
)
LORA = LoraConfig(rank=3, alpha=6.0, targets=("q", "o", "down"))
SHAPES = adapter_shapes(LORA, Model(CONFIG).abstract())
Q = "base_model.model.model.layers.1.self_attn.q_proj."


@pytest.fixture
def folder(tmp_path):
    export_adapters(tmp_path / "adapter", LORA, CONFIG, adapters(), base="some/model")
    return tmp_path / "adapter"


def adapters():
    draw = np.random.default_rng(0)
    return jax.tree.map(lambda s: draw.normal(size=s.shape).astype(np.float32), SHAPES)


def load(folder, **changes):
    return load_adapters(replace(LORA, adapter=str(folder), **changes), CONFIG, SHAPES)


def test_there_and_back_to_the_bit(folder):
    jax.tree.map(np.testing.assert_array_equal, load(folder), adapters())


def test_names_and_layouts_are_those_of_peft(folder):
    raw, tensors = json.loads((folder / "adapter_config.json").read_text()), None
    assert (raw["r"], raw["lora_alpha"], raw["use_rslora"]) == (3, 6.0, False)
    assert raw["target_modules"] == ["q_proj", "o_proj", "down_proj"]
    assert raw["base_model_name_or_path"] == "some/model"
    tensors = load_file(folder / "adapter_model.safetensors")
    assert len(tensors) == 2 * 2 * 3
    pair = adapters()["layers"]["attn"]["q_NDHK"]
    np.testing.assert_array_equal(tensors[Q + "lora_A.weight"], pair["a_NDU"][1].T)
    # torch's weight of the product: [outputs, inputs] = B·A
    product = tensors[Q + "lora_B.weight"] @ tensors[Q + "lora_A.weight"]
    want = np.einsum("du,uhk->hkd", pair["a_NDU"][1], pair["b_NUHK"][1]).reshape(16, 12)
    np.testing.assert_allclose(product, want, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("r", 4, r"r=4, but lora.rank=3"),
        ("lora_alpha", 3, r"lora_alpha=3, but lora.alpha=6.0"),
        ("use_rslora", True, r"use_rslora=True, but lora.rslora=False"),
        ("peft_type", "IA3", "peft_type"),
        ("use_dora", True, "use_dora"),
        ("bias", "all", "bias"),
        ("modules_to_save", ["lm_head"], "modules_to_save"),
        ("rank_pattern", {"q_proj": 8}, "rank_pattern"),
        ("init_lora_weights", "pissa", "init_lora_weights"),
        ("alora_invocation_tokens", [1, 2], "alora_invocation_tokens"),
        ("layers_to_transform", [0], "layers_to_transform"),
    ],
)
def test_other_options_are_refused_by_name(folder, name, value, message):
    raw = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps(raw | {name: value}))
    with pytest.raises(ConfigError, match=message):
        load(folder)


def test_dropout_of_its_training_is_no_part_of_an_adapter(folder):
    raw = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps(raw | {"lora_dropout": 0.1}))
    load(folder)


def test_other_tensors_are_refused_by_name(folder):
    file = folder / "adapter_model.safetensors"
    whole = load_file(file)
    save_file({k: v for k, v in whole.items() if not k.startswith(Q)}, file)
    with pytest.raises(ConfigError, match=r"layers\.1\.self_attn\.q_proj\.lora_A.* is missing"):
        load(folder)
    save_file(whole | {Q + "lora_A.weight": np.zeros((3, 13), np.float32)}, file)
    with pytest.raises(ConfigError, match=r"q_proj.lora_A.weight has shape \(3, 13\), not"):
        load(folder)
    extra = {Q.replace("q_proj", "k_proj") + "lora_A.weight": np.zeros((3, 12), np.float32)}
    save_file(whole | extra, file)
    with pytest.raises(ConfigError, match=r"k_proj.*which lora.targets does not name"):
        load(folder)
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(ConfigError, match="cut short"):
        load(folder)
    file.unlink()
    with pytest.raises(ConfigError, match="is missing"):
        load(folder)


def test_a_folder_of_something_else_is_not_overwritten(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="not an adapter"):
        export_adapters(tmp_path, LORA, CONFIG, adapters(), base="")


@pytest.mark.parametrize("family", ["gpt2", "phi3"])
def test_families_with_joined_matrices_have_no_such_file(tmp_path, family):
    config = replace(CONFIG, family=family, num_kv_heads=4)
    shapes = adapter_shapes(LORA, random_params(Model(config), 0))
    assert not in_peft_format(config) and in_peft_format(CONFIG)
    new = init_adapters(jax.random.key(0), shapes)
    with pytest.raises(ConfigError, match=f"adapters of {family} have no file"):
        export_adapters(tmp_path / "adapter", LORA, config, new, base="")
