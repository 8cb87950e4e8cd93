"""Adapters against PEFT: it loads ours and we load its, with the same logits."""

import json
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny import random_params

from rlhf_jax.models.config import DecoderConfig
from rlhf_jax.models.convert import export_pretrained
from rlhf_jax.models.lora import LoraConfig, adapter_shapes, attach
from rlhf_jax.models.peft import export_adapters, load_adapters
from rlhf_jax.models.tokenizer import byte_tokenizer
from rlhf_jax.models.transformer import Model

torch = pytest.importorskip("torch")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of the libraries that it brings along
    peft = pytest.importorskip("peft")
    transformers = pytest.importorskip("transformers")

MODULES = {
    "q": "q_proj",
    "k": "k_proj",
    "v": "v_proj",
    "o": "o_proj",
    "gate": "gate_proj",
    "up": "up_proj",
    "down": "down_proj",
}
TOKENS_BT = np.random.default_rng(0).integers(0, 259, (2, 9))
FAMILIES = {
    "llama": {},
    "qwen2": dict(qkv_bias=True),
    "qwen3": dict(qk_norm=True),
    "mistral": {},
}


def write_model(folder, family):
    tokenizer = byte_tokenizer()
    config = DecoderConfig(
        vocab_size=tokenizer.vocab_size,
        family=family,
        num_layers=2,
        d_model=32,
        num_heads=4,
        num_kv_heads=2,
        head_dim=8,
        d_ff=48,
        max_positions=32,
        **FAMILIES[family],
    )
    model = Model(config)
    params = random_params(model, 0)
    export_pretrained(folder, config, params, tokenizer)
    return model, params


def torch_model(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def torch_logits(model):
    with torch.no_grad():
        return model(torch.tensor(TOKENS_BT)).logits.numpy()


def our_logits(model, params):
    hidden = model.hidden(params, jnp.asarray(TOKENS_BT), jnp.ones(TOKENS_BT.shape, bool))
    return np.asarray(model.logits(params, hidden))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("rslora", [False, True])
@pytest.mark.filterwarnings("ignore")
def test_peft_loads_what_we_write(tmp_path, family, rslora):
    model, params = write_model(tmp_path / "model", family)
    lora = LoraConfig(rank=3, alpha=5.0, rslora=rslora)
    draw = np.random.default_rng(1)
    shapes = adapter_shapes(lora, params)
    adapters = jax.tree.map(lambda s: jnp.asarray(0.2 * draw.normal(size=s.shape), s.dtype), shapes)
    base = str(tmp_path / "model")
    export_adapters(tmp_path / "adapter", lora, model.config, adapters, base=base)
    theirs = peft.PeftModel.from_pretrained(torch_model(base), tmp_path / "adapter").eval()
    want, plain = torch_logits(theirs), our_logits(model, params)
    got = our_logits(model, attach(params, adapters, lora.scale))
    np.testing.assert_allclose(got, want, atol=1e-4)
    assert np.abs(got - plain).max() > 0.05


@pytest.mark.parametrize("targets", [tuple(MODULES), ("q", "v")])
@pytest.mark.filterwarnings("ignore")
def test_we_load_what_peft_writes(tmp_path, targets):
    model, params = write_model(tmp_path / "model", "llama")
    asked = peft.LoraConfig(
        r=4, lora_alpha=8, target_modules=[MODULES[name] for name in targets], lora_dropout=0.1
    )
    theirs = peft.get_peft_model(torch_model(str(tmp_path / "model")), asked).eval()
    with torch.no_grad():
        for name, x in theirs.named_parameters():
            if "lora_B" in name:
                x.copy_(0.2 * torch.randn(x.shape, generator=torch.manual_seed(len(name))))
    theirs.save_pretrained(tmp_path / "adapter")
    raw = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert raw["r"] == 4
    lora = LoraConfig(rank=4, alpha=8.0, targets=targets, adapter=str(tmp_path / "adapter"))
    adapters = load_adapters(lora, model.config, adapter_shapes(lora, params))
    got = our_logits(model, attach(params, adapters, lora.scale))
    np.testing.assert_allclose(got, torch_logits(theirs), atol=1e-4)
    merged = torch_logits(theirs.merge_and_unload())
    np.testing.assert_allclose(got, merged, atol=1e-4)
