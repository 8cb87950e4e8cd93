"""What is measured on held-out prompts, against plain sums."""

from types import SimpleNamespace

import numpy as np
import pytest

from rlhf_jax.data.prompts import PromptSet
from rlhf_jax.errors import ConfigError
from rlhf_jax.loops.collect import Judged
from rlhf_jax.loops.evaluate import EvalConfig, distinct_n, evaluate
from rlhf_jax.models.tokenizer import byte_tokenizer

L, R = 3, 4
ANSWERS = [[7, 7, 7, 7], [5, 6, 5, 6], [5, 6, 7], [9], [5, 5, 6]]  # of prompts "00" … "04"
LOGP = np.log(np.arange(2, 2 + len(ANSWERS) * R).reshape(len(ANSWERS), R))
REF = 0.5 * LOGP - 1


def held_out():
    rows = [{"prompt": f"0{i}", "number": i} for i in range(len(ANSWERS))]
    return PromptSet.from_rows(rows, byte_tokenizer(), max_prompt_tokens=L)


def numbers_of(prompts):
    return [row["number"] for row in prompts.rows]


def answer(prompts):
    tokens = np.full((len(prompts.rows), L + R), 99)
    mask = np.zeros(tokens.shape, bool)
    for b, number in enumerate(numbers_of(prompts)):
        ids = ANSWERS[number]
        tokens[b, L : L + len(ids)] = ids
        mask[b, L : L + len(ids)] = True
    truncated = mask.sum(1) == R
    return SimpleNamespace(
        tokens_BT=tokens, mask_BT=mask, truncated_B=truncated, numbers=numbers_of(prompts)
    )


def judge(prompts, rollout):
    """Two functions: the number, and twice the number where it is even; nothing for prompt 3."""
    number = np.array(numbers_of(prompts), np.float32)
    score = np.stack([number, np.where(number % 2, 0, 2 * number)], axis=1)
    valid = np.stack([number != 3, number % 2 == 0], axis=1)
    texts = [str(n) for n in number]
    return Judged(prompts.texts, texts, score * valid, valid)


def log_probs(rollout, with_reference=True):
    def place(x):
        return np.concatenate([np.full((len(x), L), 77.0), x], axis=1)  # junk before the answer

    numbers = rollout.numbers
    return {
        "logp_old_BT": place(LOGP[numbers]),
        "logp_ref_BT": place(REF[numbers]) if with_reference else None,
    }


@pytest.mark.parametrize("num_prompts", [1, 2, 4, 5, 8])
def test_every_prompt_counts_once_however_they_are_batched(num_prompts):
    numbers, judged = evaluate(
        held_out(), num_prompts, answer=answer, judge=judge, log_probs=log_probs
    )
    assert judged.prompts == [f"0{i}" for i in range(5)]
    lengths = np.array([4, 4, 3, 1, 3])
    inside = np.arange(R)[None] < lengths[:, None]
    wanted = {
        "score": np.mean([0, 1, 2 + 4, 4 + 8]),  # prompt 3 is judged by nobody
        "length": 3.0,
        "truncated": 2 / 5,
        "distinct_2": np.mean([1 / 3, 2 / 3, 1, 1, 1]),
        "kl": np.mean(np.where(inside, LOGP - REF, 0).sum(1)),
        "ref_perplexity": np.exp(-REF[inside].sum() / 15),
    }
    assert numbers == pytest.approx(wanted, rel=1e-5)


def test_without_a_reference_there_is_no_distance_from_it():
    numbers, _ = evaluate(
        held_out(), 4, answer=answer, judge=judge, log_probs=lambda r: log_probs(r, False)
    )
    assert numbers.keys() == {"score", "length", "truncated", "distinct_2"}


def test_distinct_n():
    assert distinct_n([1, 2, 3], 2) == 1
    assert distinct_n([1, 1, 1, 1], 2) == pytest.approx(1 / 3)
    assert distinct_n([1, 2, 1, 2, 1], 2) == pytest.approx(2 / 4)
    assert distinct_n([1, 1, 2], 1) == pytest.approx(2 / 3)
    assert distinct_n([4], 2) == distinct_n([], 1) == 1


@pytest.mark.parametrize(
    "wrong", [{"every": 0}, {"temperature": -0.1}, {"temperature": np.inf}, {"samples_shown": 0}]
)
def test_options_out_of_range(wrong):
    with pytest.raises(ConfigError, match=f"evaluation.{next(iter(wrong))}="):
        EvalConfig(**wrong)
