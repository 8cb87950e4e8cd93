"""What is measured on held-out prompts, against plain sums."""

from types import SimpleNamespace

import numpy as np
import pytest
from toy import online_config

from rlhf_jax.data.prompts import PromptSet
from rlhf_jax.errors import ConfigError
from rlhf_jax.loops import measure, online
from rlhf_jax.loops.attempts import of_k, whole_text
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


def answer_thrice(prompts):
    """Answers of prompt i: i, i, "x", in rows side by side."""
    one = answer(prompts)
    repeated = {name: np.repeat(value, 3, axis=0) for name, value in vars(one).items()}
    return SimpleNamespace(**repeated)


def judge_thrice(prompts, rollout):
    """Right (1) where the number is even, for the first two; prompt 3 is judged by nobody."""
    number = np.repeat(np.array(numbers_of(prompts), np.float32), 3)
    third = np.tile([False, False, True], len(number) // 3)
    score = np.where((number % 2 == 0) & ~third, 1.0, 0.5 * third).astype(np.float32)
    texts = ["x" if last else f" {n:g} " for n, last in zip(number, third, strict=True)]
    prompts_B = [text for text in prompts.texts for _ in range(3)]
    return Judged(prompts_B, texts, score[:, None], (number != 3)[:, None])


@pytest.mark.parametrize("num_prompts", [2, 5, 8])
def test_several_answers_a_prompt(num_prompts):
    config = EvalConfig(temperature=1.0, num_samples=3, ks=(1, 2, 3), greedy_too=True)
    numbers, judged = evaluate(
        held_out(),
        num_prompts,
        answer=answer_thrice,
        judge=lambda prompts, rollout: (
            judge_thrice(prompts, rollout)
            if len(rollout.tokens_BT) == 3 * len(prompts.rows)
            else judge(prompts, rollout)
        ),
        log_probs=log_probs,
        config=config,
        greedy=answer,
    )
    # copies that fill the last batch are in no group: prompts × answers, no more
    assert judged.prompts == [f"0{i}" for i in range(5) for _ in range(3)]
    assert numbers["length"] == 3.0
    # of prompts 0, 1, 2, 4 (nobody judges 3) two of three answers are right, 1 has none
    wanted = {
        "score": (3 * (2 + 0.5) + 0.5) / 12,
        "pass@1": 3 / 4 * 2 / 3,
        "pass@2": 3 / 4,
        "pass@3": 3 / 4,
        "maj@1": 3 / 4 * 2 / 3,
        "maj@2": 3 / 4 * (1 + 0.5 + 0.5) / 3,  # one against one: half
        "maj@3": 3 / 4,
        "best@1": (3 * (2 + 0.5) + 0.5) / 12,
        "best@2": (3 + 0.5 * 2 / 3) / 4,
        "best@3": (3 + 0.5) / 4,
        "greedy_score": np.mean([0, 1, 2 + 4, 4 + 8]),
    }
    assert {name: numbers[name] for name in wanted} == pytest.approx(wanted, rel=1e-5)


def test_a_prompt_with_too_few_judged_answers_is_left_out_of_that_k():
    groups = [(["a", "b"], [1.0, 0.0]), (["c"], [1.0])]
    numbers = of_k(groups, (1, 2), extract=whole_text, right_from=1.0)
    assert numbers["pass@1"] == pytest.approx((0.5 + 1) / 2)
    assert numbers["pass@2"] == 1.0
    assert of_k(groups, (3,), extract=whole_text, right_from=1.0) == {}


def test_the_vote_counts_extracted_answers():
    """Two of three end in the same answer, though no two texts are equal."""
    groups = [(["so 7", "thus 7", "8"], [1.0, 1.0, 0.0])]

    def last_word(text):
        return text.split()[-1]

    assert of_k(groups, (3,), extract=last_word, right_from=1.0)["maj@3"] == 1
    plain = of_k(groups, (3,), extract=whole_text, right_from=1.0)
    assert plain["maj@3"] == pytest.approx(2 / 3)
    assert whole_text("  7\n") == "7"
    assert whole_text(" ") is None
    with pytest.raises(ConfigError, match=r"extract=.*returned 7"):
        of_k(groups, (3,), extract=lambda text: 7, right_from=1.0)


def test_distinct_n():
    assert distinct_n([1, 2, 3], 2) == 1
    assert distinct_n([1, 1, 1, 1], 2) == pytest.approx(1 / 3)
    assert distinct_n([1, 2, 1, 2, 1], 2) == pytest.approx(2 / 4)
    assert distinct_n([1, 1, 2], 1) == pytest.approx(2 / 3)
    assert distinct_n([4], 2) == distinct_n([], 1) == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"every": 0},
        {"temperature": -0.1},
        {"temperature": np.inf},
        {"samples_shown": 0},
        {"num_samples": 0},
        {"ks": (2,)},
        {"ks": (0,)},
        {"right_from": np.nan},
    ],
)
def test_options_out_of_range(wrong):
    with pytest.raises(ConfigError, match=f"evaluation.{next(iter(wrong))}="):
        EvalConfig(**wrong)


@pytest.mark.parametrize("wrong", [{"num_samples": 2}, {"greedy_too": True}])
def test_greedy_answers_are_drawn_once(wrong):
    with pytest.raises(ConfigError, match="answers greedily, once"):
        EvalConfig(temperature=0.0, **wrong)


@pytest.mark.usefixtures("one_device")
def test_verl_2881_n_answers_a_prompt_not_n_squared(policy_folder, monkeypatch):
    """6 held-out prompts in batches of 4, trained on 4 samples each, evaluated on 3: 18 answers."""
    drawn = []
    plain = measure.judge

    def count(cfg, tokenizer, prompts, rollout, **options):
        drawn.append(len(rollout.tokens_BT))
        return plain(cfg, tokenizer, prompts, rollout, **options)

    monkeypatch.setattr(measure, "judge", count)
    evaluation = EvalConfig(temperature=1.0, num_samples=3, ks=(1, 3), right_from=0.5)
    cfg = online_config(policy_folder, "", evaluation=evaluation)
    numbers = online.measure_only(cfg)
    assert drawn == [4 * 3, 4 * 3]
    assert numbers == online.measure_only(cfg)  # the keys are fixed
    assert 0 < numbers["pass@1"] < numbers["pass@3"] <= 1
    assert numbers["best@1"] == pytest.approx(numbers["score"])
