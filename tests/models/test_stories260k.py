"""A real pretrained model: logits and greedy ids that torch wrote down."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlhf_jax.models.convert import export_pretrained, load_pretrained
from rlhf_jax.models.tokenizer import Tokenizer
from rlhf_jax.models.transformer import Model

NEW_TOKENS = 64


@pytest.fixture(scope="module")
def stories(stories_folder):
    config, params = load_pretrained(stories_folder / "hf")
    with np.load(stories_folder / "golden.npz") as golden:
        return Model(config), params, dict(golden)


def test_prompts_encode_to_the_golden_ids(stories, stories_folder):
    tokenizer = Tokenizer.from_folder(stories_folder / "hf")
    prompts = json.loads((stories_folder / "golden.json").read_text())["prompts"]
    for n, prompt in enumerate(prompts):
        assert tokenizer.encode(prompt, add_bos=True) == stories[2][f"ids_{n}"].tolist()


def golden_batch(golden):
    """The three greedy sequences right-padded to one length: tokens_BT, attend_BT."""
    rows = [golden[f"greedy_{n}"] for n in range(3)]
    tokens_BT = np.zeros((3, max(map(len, rows))), np.int32)
    attend_BT = np.zeros(tokens_BT.shape, bool)
    for b, row in enumerate(rows):
        tokens_BT[b, : len(row)] = row
        attend_BT[b, : len(row)] = True
    return tokens_BT, attend_BT


def test_logits_and_greedy_ids(stories):
    model, params, golden = stories
    tokens_BT, attend_BT = golden_batch(golden)

    @jax.jit
    def logits(params, tokens_BT, attend_BT):
        return model.logits(params, model.hidden(params, tokens_BT, attend_BT))

    logits_BTV = logits(params, tokens_BT, attend_BT)
    lengths_B = [len(golden[f"ids_{n}"]) for n in range(3)]
    for b, length in enumerate(lengths_B):
        np.testing.assert_allclose(logits_BTV[b, :length], golden[f"logits_{b}"], atol=1e-4)

    # Greedy without a cache, from the prompts alone.
    drawn_BT = np.where(np.arange(tokens_BT.shape[1]) < np.array(lengths_B)[:, None], tokens_BT, 0)
    last_B = np.array(lengths_B) - 1
    rows_B = np.arange(3)
    for _ in range(NEW_TOKENS):
        attend_BT = np.arange(tokens_BT.shape[1]) <= last_B[:, None]
        best_BT = np.asarray(jnp.argmax(logits(params, drawn_BT, attend_BT), axis=-1))
        drawn_BT[rows_B, last_B + 1] = best_BT[rows_B, last_B]
        last_B += 1
    assert drawn_BT.tolist() == tokens_BT.tolist()


def test_export_is_the_model_again(stories, stories_folder, tmp_path):
    model, params, _ = stories
    tokenizer = Tokenizer.from_folder(stories_folder / "hf")
    export_pretrained(tmp_path / "policy", model.config, params, tokenizer)
    config, again = load_pretrained(tmp_path / "policy")
    assert config == model.config
    jax.tree.map(np.testing.assert_array_equal, again, params)
    assert Tokenizer.from_folder(tmp_path / "policy").end_ids == (1, 2)


def test_transformers_gives_the_golden_logits_from_the_export(stories, stories_folder, tmp_path):
    torch = pytest.importorskip("torch", reason="transformers needs torch to run a model")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, params, golden = stories
    tokenizer = Tokenizer.from_folder(stories_folder / "hf")
    export_pretrained(tmp_path / "policy", model.config, params, tokenizer)
    judge = AutoModelForCausalLM.from_pretrained(tmp_path / "policy", local_files_only=True)
    assert judge.generation_config.eos_token_id == [1, 2]
    prompts = json.loads((stories_folder / "golden.json").read_text())["prompts"]
    hf_tokenizer = AutoTokenizer.from_pretrained(tmp_path / "policy", local_files_only=True)
    for n, prompt in enumerate(prompts):
        ids_T = hf_tokenizer(prompt).input_ids
        assert ids_T == golden[f"ids_{n}"].tolist()
        with torch.no_grad():
            logits_TV = judge(torch.tensor([ids_T])).logits[0].numpy()
        np.testing.assert_allclose(logits_TV, golden[f"logits_{n}"], atol=1e-4)
