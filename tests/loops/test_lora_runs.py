"""Runs of every kind with adapters: what they train, save, export, go on from and refuse."""

import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from loops.test_reward_model import reward_config
from toy import (
    online_config,
    online_preference_config,
    preference_config,
    saved,
    sft_config,
    spell,
)

from rlhf_jax.algorithms.grpo import grpo
from rlhf_jax.algorithms.kto import kto
from rlhf_jax.algorithms.ppo import ppo
from rlhf_jax.bind import bind
from rlhf_jax.errors import ConfigError
from rlhf_jax.loops import online, online_preference, preference, reward_model, sft
from rlhf_jax.losses.kl import KL, k3
from rlhf_jax.models.convert import load_pretrained
from rlhf_jax.models.lora import LoraConfig, adapter_shapes, attach, merged
from rlhf_jax.models.peft import load_adapters
from rlhf_jax.models.reward import load_reward_model
from rlhf_jax.types import replace

pytestmark = pytest.mark.usefixtures("one_device", "no_curves")

LORA = LoraConfig(rank=2, alpha=4.0)
WITH_KL = replace(grpo(), loss_kl=KL(estimator=bind(k3), coef=0.1))
CONFIGS = {
    "sft": (
        sft.run,
        lambda model, out, **changes: sft_config(
            out, model=str(model), held_out=bind(spell, rows=6), **changes
        ),
    ),
    "dpo": (preference.run, preference_config),
    "kto": (
        preference.run,
        lambda model, out, **changes: preference_config(
            model, out, objective=kto(), precompute_reference=False, **changes
        ),
    ),
    "reward": (reward_model.run, reward_config),
    "grpo": (
        online.run,
        lambda model, out, **changes: online_config(
            model, out, objective=WITH_KL, num_steps=4, refresh_reference_every=3, **changes
        ),
    ),
    "ppo": (
        online.run,
        lambda model, out, **changes: online_config(
            model, out, objective=ppo(kl_coef=0.1), num_steps=4, **changes
        ),
    ),
    "online_dpo": (
        online_preference.run,
        lambda model, out, **changes: online_preference_config(model, out, num_steps=4, **changes),
    ),
}


@pytest.fixture(scope="module")
def runs(one_device, policy_folder, tmp_path_factory):
    """kind -> (config, result) of a finished run of 4 steps, made when first asked for."""
    root, made = tmp_path_factory.mktemp("runs"), {}

    def get(kind):
        if kind not in made:
            run, config = CONFIGS[kind]
            cfg = config(policy_folder, root / kind, lora=LORA)
            made[kind] = cfg, run(cfg)
        return made[kind]

    return get


def params_of(folder):
    return load_pretrained(folder)[1]


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_checkpoint_holds_adapters_and_goes_on_to_the_bit(runs, kind, tmp_path):
    cfg, _ = runs(kind)
    arrays, _ = saved(cfg.out, 4)
    held = [name for name in arrays if not name.split(".")[-1].startswith(("a_", "b_"))]
    # beside adapters only counters, what optimizers count, and heads that are trained whole
    assert sum(arrays[name].size for name in held) < 300, held
    assert not any("embed" in name or name.startswith("base") for name in arrays)
    assert any(name.startswith("policy.") for name in arrays)

    out = tmp_path / "again"
    shutil.copytree(cfg.out, out)
    shutil.rmtree(out / "checkpoints" / "step_00000004")
    (out / "result.json").unlink()
    shutil.rmtree(out / "policy", ignore_errors=True)
    CONFIGS[kind][0](replace(cfg, out=str(out)))
    again, _ = saved(out, 4)
    assert again.keys() == arrays.keys()
    for name in arrays:
        np.testing.assert_array_equal(again[name], arrays[name], err_msg=name)


@pytest.mark.parametrize("kind", ["sft", "dpo", "grpo"])
def test_the_exported_model_is_the_base_with_the_exported_adapter(runs, kind, policy_folder):
    cfg, _ = runs(kind)
    config, base = load_pretrained(policy_folder)
    lora = replace(LORA, adapter=f"{cfg.out}/adapter")
    adapters = load_adapters(lora, config, adapter_shapes(lora, base))
    want = merged(attach(base, jax.tree.map(jax.numpy.asarray, adapters), lora.scale))
    found = params_of(Path(cfg.out, "policy"))
    for x, y in zip(*map(jax.tree.leaves, (found, want)), strict=True):
        np.testing.assert_allclose(x, y, atol=1e-6)
    changed = found["layers"]["attn"]["q_NDHK"] - base["layers"]["attn"]["q_NDHK"]
    assert np.abs(changed).max() > 1e-4
    np.testing.assert_array_equal(found["embed"]["w_VD"], base["embed"]["w_VD"])
    raw = json.loads(Path(cfg.out, "adapter", "adapter_config.json").read_text())
    assert raw["base_model_name_or_path"] == str(policy_folder)


def test_it_learns(runs):
    _, result = runs("sft")
    assert result["after"]["loss"] < result["before"]["loss"] - 0.05
    _, result = runs("dpo")
    assert result["before"]["drift_chosen"] == 0 and result["after"]["margin"] > 0
    for kind in ("grpo", "online_dpo"):
        _, result = runs(kind)
        assert result["before"]["kl"] == 0 and abs(result["after"]["kl"]) > 1e-3, kind


def test_a_critic_shares_the_base_and_trains_adapters_and_its_head(runs):
    cfg, _ = runs("ppo")
    arrays, _ = saved(cfg.out, 4)
    moved = {name: np.abs(arrays[name]).max() for name in arrays if name.startswith("critic.par")}
    assert moved["critic.params.head.w_D"] > 0
    assert moved["critic.params.trunk.layers.attn.q_NDHK.b_NUHK"] > 0
    assert moved["critic.params.trunk.layers.mlp.down_NFD.b_NUD"] > 0


def test_a_reward_model_is_exported_merged(runs, policy_folder):
    cfg, _ = runs("reward")
    found = load_reward_model(Path(cfg.out, "reward_model")).params["trunk"]
    base = params_of(policy_folder)
    assert np.abs(found["layers"]["mlp"]["up_NDF"] - base["layers"]["mlp"]["up_NDF"]).max() > 1e-4
    np.testing.assert_array_equal(found["embed"]["w_VD"], base["embed"]["w_VD"])


@pytest.mark.parametrize("kind", ["dpo", "kto", "grpo"])
def test_after_adapters_the_reference_is_the_policy_of_the_start(
    runs, kind, policy_folder, tmp_path
):
    """Not the bare base: no drift and no KL before the first step, from an adapter that moved."""
    lora = replace(LORA, adapter=f"{runs('sft')[0].out}/adapter")
    run, config = CONFIGS[kind]
    result = run(config(policy_folder, tmp_path / "next", lora=lora, **short(kind)))
    drift = "kl" if kind == "grpo" else "drift_chosen"
    assert result["before"][drift] == pytest.approx(0, abs=1e-5)
    assert abs(result["after"][drift]) > 1e-4


def short(kind):
    return {"num_steps": 2} if kind in ("dpo", "kto") else {}


def test_another_adapter_is_another_run(runs, policy_folder, tmp_path):
    cfg, _ = runs("sft")
    adapter = tmp_path / "adapter"
    shutil.copytree(Path(cfg.out, "adapter"), adapter)
    begun = replace(cfg, out=str(tmp_path / "run"), num_steps=1)
    begun = replace(begun, lora=replace(LORA, adapter=str(adapter)))
    sft.run(begun)
    shutil.rmtree(adapter)
    shutil.copytree(Path(runs("dpo")[0].out, "adapter"), adapter)
    with pytest.raises(ConfigError, match=r"model or the data of .* has changed"):
        sft.run(begun)


def test_what_cannot_be_is_refused(policy_folder, tmp_path):
    with pytest.raises(ConfigError, match="lora adapts a given model"):
        sft_config(tmp_path, lora=LORA)
    with pytest.raises(ConfigError, match="refresh_mix must be 1"):
        online_config(
            policy_folder, tmp_path, lora=LORA, refresh_reference_every=1, refresh_mix=0.5
        )
    cfg = sft_config(tmp_path / "run", model=str(policy_folder), lora=replace(LORA, rank=40))
    with pytest.raises(ConfigError, match="the full rank of"):
        sft.run(cfg)
