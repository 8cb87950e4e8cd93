"""The calculator experiment: its problems, its teacher, and that its dialogues fit."""

import numpy as np
import pytest

from experiments.grpo_calculator import CONFIG, ENVIRONMENT, SIZES, TURNS, hasty_teacher, problems
from rlhf_jax.data.demonstrations import DemonstrationSet
from rlhf_jax.environments.contract import answered, begin
from rlhf_jax.errors import ConfigError
from rlhf_jax.models.tokenizer import byte_tokenizer
from rlhf_jax.types import replace


def test_no_problem_is_in_two_sets_and_every_answer_is_right():
    sets = problems(**SIZES, seed=0)
    assert [len(rows) for rows in sets] == [4000, 3900, 200]
    prompts = [row["prompt"] for rows in sets for row in rows]
    assert len(set(prompts)) == len(prompts) == 90 * 90
    for row in sets[2]:
        a, b = map(int, row["prompt"].removesuffix("=").split("*"))
        assert row["answer"] == str(a * b) and 10 <= min(a, b) <= max(a, b) <= 99
    assert problems(**SIZES, seed=1) != sets == problems(**SIZES, seed=0)


def test_the_teacher_is_right_three_times_in_ten():
    """.4 asked · (.75 typed rightly + .25 · 1/9 mistyped as what stands there) = .311"""
    rng, right = np.random.default_rng(0), []
    for row in problems(**SIZES, seed=0)[0]:
        dialogue, told = begin(ENVIRONMENT, row, "here"), []
        for _ in range(TURNS):
            text = hasty_teacher(row, told, rng)
            step = answered(dialogue, text, "here")
            if step.done:
                break
            told.append((text, step.observation))
        right.append(step.done and step.reward)
    assert np.mean(right) == pytest.approx(0.311, abs=0.03)


def test_demonstrations_and_dialogues_fit():
    warmup, rl = CONFIG.warmup, CONFIG.rl
    rows = warmup.demonstrations()
    found = DemonstrationSet.from_rows(rows, byte_tokenizer(), max_tokens=warmup.max_tokens)
    longest = max(map(len, found.ids))
    assert longest <= warmup.max_tokens
    # a right call and its result leave room for a whole turn, as the run asks
    call, result = "<calc>99*99</calc>", "<result>9801</result>"
    columns = len(call) + 1 + len(result) + rl.sampling.max_new_tokens
    assert columns <= rl.dialogue.max_columns
    assert rl.columns <= warmup.decoder.max_positions


def test_what_is_set_from_above_is_not_set_below():
    with pytest.raises(ConfigError, match=r"rl.seed is set from above; use --seed"):
        replace(CONFIG, rl=replace(CONFIG.rl, seed=1))
    with pytest.raises(ConfigError, match=r"rl.model is the policy of the warm-up"):
        replace(CONFIG, rl=replace(CONFIG.rl, model="m"))
    assert CONFIG.warmup.demonstrations.kw == CONFIG.rl.prompts.kw
