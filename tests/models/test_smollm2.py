"""SmolLM2-135M-Instruct, a real instruct model: loads, chats, equals transformers, goes out again.

Run by hand: RLHF_JAX_SMOLLM2=FOLDER pytest -m slow tests/models/test_smollm2.py
"""

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlhf_jax.models.convert import export_pretrained, load_pretrained
from rlhf_jax.models.tokenizer import Tokenizer
from rlhf_jax.models.transformer import Model
from rlhf_jax.rollout.sampler import SamplingConfig, make_sampler

pytestmark = pytest.mark.slow

QUESTIONS = ("What is the capital of France?", "Name three colours.")
# What its template makes of the first question; its own system message comes first.
RENDERED = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
    "<|im_end|>\n<|im_start|>user\nWhat is the capital of France?<|im_end|>\n"
    "<|im_start|>assistant\n"
)


@pytest.fixture(scope="module")
def folder():
    name = os.environ.get("RLHF_JAX_SMOLLM2")
    if not name:
        pytest.skip("set RLHF_JAX_SMOLLM2 to a Hugging Face folder of SmolLM2-135M-Instruct")
    return name


@pytest.fixture(scope="module")
def loaded(folder):
    config, params = load_pretrained(folder)
    return Model(config), params, Tokenizer.from_folder(folder)


@pytest.fixture(scope="module")
def prompts(folder):
    """The questions as its chat template renders them, left-padded: tokens_PL, attend_PL."""
    transformers = pytest.importorskip("transformers")
    hf = transformers.AutoTokenizer.from_pretrained(folder)
    chats = [[{"role": "user", "content": question}] for question in QUESTIONS]
    texts = hf.apply_chat_template(chats, tokenize=False, add_generation_prompt=True)
    ids = [Tokenizer.from_folder(folder).encode(text) for text in texts]
    assert texts[0] == RENDERED
    assert ids[0] == hf.apply_chat_template(
        chats[0], add_generation_prompt=True, return_dict=False
    ), "a template's specials are single ids, and no second BOS is added"
    length = max(map(len, ids))
    tokens_PL = np.array([[2] * (length - len(row)) + row for row in ids], np.int32)
    lengths = np.array([len(row) for row in ids])
    return tokens_PL, np.arange(length)[None] >= (length - lengths)[:, None]


def our_logits(model, params, tokens_PL, attend_PL):
    @jax.jit
    def run(params):
        return model.logits(params, model.hidden(params, tokens_PL, attend_PL))

    return np.asarray(run(params))


def test_shape_and_ends(loaded):
    model, params, tokenizer = loaded
    assert sum(x.size for x in jax.tree.leaves(params)) == 134_515_008
    assert (model.config.num_layers, model.config.num_heads, model.config.num_kv_heads) == (
        30,
        9,
        3,
    )
    assert tokenizer.end_ids == (2,) and tokenizer.vocab_size == 49152


def test_it_answers_through_its_template(loaded, prompts):
    model, params, tokenizer = loaded
    tokens_PL, attend_PL = prompts
    sampling = SamplingConfig(
        num_samples=1, max_prompt_tokens=tokens_PL.shape[1], max_new_tokens=24, temperature=0.0
    )
    sample = make_sampler(model, sampling, end_ids=tokenizer.end_ids, pad_id=tokenizer.pad_id)
    rollout = sample(params, tokens_PL, attend_PL, jnp.arange(2), jax.random.key(0))
    row_T, mask_T = np.asarray(rollout.tokens_BT)[0], np.asarray(rollout.mask_BT)[0]
    answer = tokenizer.decode(row_T[mask_T])
    assert "Paris" in answer
    assert row_T[mask_T][-1] in tokenizer.end_ids


@pytest.mark.filterwarnings("ignore")
def test_logits_and_export_equal_transformers(loaded, prompts, folder, tmp_path):
    torch = pytest.importorskip("torch")
    from transformers import AutoModelForCausalLM

    model, params, tokenizer = loaded
    tokens_PL, attend_PL = prompts

    def theirs(place):
        net = AutoModelForCausalLM.from_pretrained(place, dtype=torch.float32).eval()
        with torch.no_grad():
            out = net(torch.tensor(tokens_PL), attention_mask=torch.tensor(attend_PL))
        return out.logits.numpy()

    want, got = theirs(folder), our_logits(model, params, tokens_PL, attend_PL)
    np.testing.assert_allclose(got[attend_PL], want[attend_PL], atol=2e-3)
    print("largest difference of logits:", np.abs(got - want)[attend_PL].max())
    export_pretrained(tmp_path / "out", model.config, params, tokenizer)
    _, again = load_pretrained(tmp_path / "out")
    jax.tree.map(np.testing.assert_array_equal, again, params)
    np.testing.assert_array_equal(theirs(tmp_path / "out")[attend_PL], want[attend_PL])
