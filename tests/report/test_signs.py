"""Every rule warns on made-up metrics past its threshold, and is quiet just short of it."""

import numpy as np
import pytest

from rlhf_jax.report.signs import RULES
from rlhf_jax.report.trends import Metrics, ends

STEPS = 100
UP = np.linspace(0, 1, STEPS)


def ramp(first, last):
    return np.linspace(first, last, STEPS)


def metrics(**series):
    """`__` stands for /; a list of numbers is spread over the steps as evaluations are."""
    lines = [{"step": step} for step in range(1, STEPS + 1)]
    for name, values in series.items():
        for i, value in enumerate(values):
            lines[i * len(lines) // len(values)][name.replace("__", "/")] = value
    return Metrics(lines, samples_per_prompt=8)


def wave(series):
    """The same with something to average over."""
    return series + 0.05 * np.sin(np.arange(len(series)) * 2.1)


# rule -> metrics at which it warns, and metrics at which it does not
CASES = {
    "KL balloons": (
        dict(score=UP, eval__kl=[0, 10.5], eval__length=[20, 20]),
        dict(score=UP, eval__kl=[0, 9.5], eval__length=[20, 20]),
    ),
    "Length moves with the score": (
        dict(score=UP, length=ramp(20, 32)),
        dict(score=UP, length=ramp(20, 27)),
    ),
    "Gold falls while the proxy rises": (
        dict(score=wave(UP), watch__gold=wave(1 - 2 * abs(UP - 0.5))),
        dict(score=wave(UP), watch__gold=wave(np.minimum(UP, 0.5))),
    ),
    "Entropy collapse": (dict(entropy=ramp(1.5, 0.4)), dict(entropy=ramp(1.5, 0.7))),
    "Answers repeat themselves": (
        dict(eval__distinct_2=[0.9, 0.95, 0.7]),
        dict(eval__distinct_2=[0.9, 0.3, 0.75]),
    ),
    "Answers unlike the reference": (
        dict(eval__ref_perplexity=[4.0, 8.1]),
        dict(eval__ref_perplexity=[4.0, 7.9]),
    ),
    "Held-out score falls": (
        dict(score=UP, eval__score=[0.5, 0.4]),
        dict(score=UP, eval__score=[0.5, 0.6]),
    ),
    "More answers cut off": (
        dict(truncated=ramp(0.1, 0.5)),
        dict(truncated=ramp(0.9, 1.0)),
    ),
    "Groups without a signal": (
        dict(groups_equal=ramp(0.2, 1.0)),
        dict(groups_equal=ramp(0.2, 0.7)),
    ),
    "Sampler and trainer disagree": (
        dict(sampler_gap=ramp(0, 0.15)),
        dict(sampler_gap=ramp(0, 0.08)),
    ),
    "Much is clipped": (
        dict(clip_low=ramp(0.1, 0.2), clip_high=ramp(0.1, 0.2)),
        dict(clip_low=ramp(0.1, 0.12), clip_high=ramp(0.1, 0.12)),
    ),
    "Over-fitting": (
        dict(eval__loss=[2.0, 1.0, 1.1]),
        dict(eval__loss=[2.0, 1.0, 1.04]),
    ),
    "Preferred answers lose as well": (
        dict(eval__accuracy=[0.5, 0.8], eval__drift_chosen=[0, -6.0]),
        dict(eval__accuracy=[0.5, 0.8], eval__drift_chosen=[0, -4.0]),
    ),
    "Updates left out": (dict(skipped=[0, 1, 0]), dict(skipped=[0, 0, 0])),
}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.title)
def test_a_rule_warns_past_its_threshold_only(rule):
    past, short = (metrics(**series) for series in CASES[rule.title])
    words = rule.judge(past)
    assert words and words.endswith((".", "?"))
    assert rule.judge(short) == ""
    assert rule.judge(metrics()) is None, "what was not logged cannot be judged"


@pytest.mark.parametrize("title", ["KL balloons", "Length moves with the score"])
def test_what_grows_without_the_score_is_not_gaming(title):
    series = dict(CASES[title][0], score=wave(np.zeros(STEPS)))
    (rule,) = (rule for rule in RULES if rule.title == title)
    assert rule.judge(metrics(**series)) == ""


def test_shorter_answers_that_pay_are_told_too():
    (rule,) = (rule for rule in RULES if rule.title == "Length moves with the score")
    assert "is shorter paid for" in rule.judge(metrics(score=UP, length=ramp(32, 20)))


def test_noise_is_no_rise():
    noise = np.random.default_rng(0).normal(size=(50, STEPS))
    assert np.mean([ends(row).rose or ends(row).fell for row in noise]) <= 0.1
    rising = [ends(row + 5 * UP) for row in noise]
    assert np.mean([e.rose for e in rising]) > 0.9 and not any(e.fell for e in rising)


def test_few_values_are_first_and_last():
    told = ends(np.array([1.0, 5.0, 2.0]))
    assert (told.early, told.late, told.rose, told.fell) == (1, 2, True, False)
    told = ends(np.arange(40.0))
    assert (told.early, told.late) == (2.0, 37.0)  # means of five


def test_a_single_answer_a_prompt_is_no_group():
    (rule,) = (rule for rule in RULES if rule.title == "Groups without a signal")
    lines = metrics(groups_equal=np.ones(STEPS)).lines
    assert rule.judge(Metrics(lines, samples_per_prompt=1)) is None
    assert rule.judge(Metrics(lines, samples_per_prompt=2))
