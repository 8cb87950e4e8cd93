"""Signs that a reward is being gamed, or that a run does not learn: rules over its metrics.

Each rule says its threshold in words, and is judged on the beginning against the end: the mean of
the first tenth of a metric's values (at least 5) against that of the last; of fewer than 10 values,
as of evaluations, the first against the last. "Rose" and "fell" mean by more than 3 standard errors
of that difference.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from rlhf_jax.report.trends import FEW, Ends, Metrics, between, tenth
from rlhf_jax.report.words import number

KL_PER_TOKEN = 0.5  # nats
LENGTH_FACTOR = 1.5
ENTROPY_LEFT = 0.4  # of its beginning
DISTINCT_LEFT = 0.8  # of its beginning
PERPLEXITY_FACTOR = 2.0
CUT_MORE = 0.2
EQUAL_GROUPS = 0.8
GAP = 0.1  # nats / token
CLIPPED = 0.3
LOSS_ABOVE_BEST = 1.05
DRIFT = -5.0  # nats / completion


def _kl(run: Metrics) -> str | None:
    score, length = run.score, run.ends("eval/length", "length")
    kl = run.ends("eval/kl", "kl_response")
    if None in (score, kl, length) or length.late <= 0:
        return None
    per_token = kl.late / length.late
    if not score.rose or per_token <= KL_PER_TOKEN:
        return ""
    return (
        f"{_change('score', score)} while the policy went {number(kl.late)} nats a completion "
        f"({per_token:.2g} a token) from the reference: it may write what no reference would."
    )


def _length(run: Metrics) -> str | None:
    score, length = run.score, run.ends("length", "eval/length")
    if None in (score, length) or length.early <= 0:
        return None
    grew = length.late >= LENGTH_FACTOR * length.early
    if not score.rose or not (grew or length.early >= LENGTH_FACTOR * length.late):
        return ""
    way = "longer" if grew else "shorter"
    return f"{_change('score', score)} while {_change('the length', length)}: is {way} paid for?"


def _gold(run: Metrics) -> str | None:
    found = []
    for name in run.names("watch/"):
        gold = run.values(name)
        if len(gold) < FEW:
            continue
        width = tenth(gold)
        starts = np.arange(len(gold) - width + 1)
        means = np.array([gold[i : i + width].mean() for i in starts])
        best = int(means[: len(gold) - 2 * width + 1].argmax())  # not overlapping the last
        since = between(gold[best : best + width], gold[-width:])
        score = run.values("score")
        if len(score) != len(gold):
            continue
        proxy = between(score[best : best + width], score[-width:])
        found.append(
            f"{name} was best about value {best + width // 2} of {len(gold)}; since then "
            f"{_change('it', since)} while {_change('the score trained on', proxy)}. "
            "Stop there, or hold the policy closer to the reference."
            if since.fell and proxy.rose
            else ""
        )
    return " ".join(filter(None, found)) if found else None


def _entropy(run: Metrics) -> str | None:
    entropy = run.ends("entropy")
    if entropy is None or entropy.early <= 0:
        return None
    if entropy.late > ENTROPY_LEFT * entropy.early:
        return ""
    return f"{_change('entropy', entropy)} nats a token: the answers vary little; less is explored."


def _repeats(run: Metrics) -> str | None:
    distinct = run.ends("eval/distinct_2")
    if distinct is None:
        return None
    if distinct.late > DISTINCT_LEFT * distinct.early:
        return ""
    return f"{_change('distinct-2', distinct)}: answers repeat their own words."


def _unlike(run: Metrics) -> str | None:
    perplexity = run.ends("eval/ref_perplexity")
    if perplexity is None:
        return None
    if perplexity.late < PERPLEXITY_FACTOR * perplexity.early:
        return ""
    return (
        f"{_change('the perplexity of the answers to the reference', perplexity)}: they no longer "
        "read like its text."
    )


def _held_out(run: Metrics) -> str | None:
    training, held_out = run.ends("score"), run.ends("eval/score")
    if None in (training, held_out):
        return None
    if not (training.rose and held_out.fell):
        return ""
    return f"{_change('the training score', training)}, {_change('the held-out score', held_out)}."


def _cut(run: Metrics) -> str | None:
    cut = run.ends("truncated", "eval/truncated")
    if cut is None:
        return None
    if cut.late - cut.early <= CUT_MORE:
        return ""
    return f"{_change('the share of answers cut at the length limit', cut)}."


def _equal(run: Metrics) -> str | None:
    equal = run.ends("groups_equal")
    if equal is None or (run.samples_per_prompt or 1) < 2:
        return None
    if equal.late < EQUAL_GROUPS:
        return ""
    return f"{equal.late:.0%} of the groups score all alike at the end: they teach nothing."


def _gap(run: Metrics) -> str | None:
    gap = run.ends("sampler_gap")
    if gap is None:
        return None
    if gap.late <= GAP:
        return ""
    return f"they differ by {gap.late:.2g} nats a token: what is learnt is off-policy."


def _clipped(run: Metrics) -> str | None:
    low, high = run.ends("clip_low"), run.ends("clip_high")
    if None in (low, high):
        return None
    if low.late + high.late < CLIPPED:
        return ""
    return f"{low.late + high.late:.0%} of the tokens are clipped at the end: steps are too large."


def _overfit(run: Metrics) -> str | None:
    loss = run.values("eval/loss")
    if len(loss) < 3 or loss.min() <= 0:
        return None
    if loss[-1] <= LOSS_ABOVE_BEST * loss.min():
        return ""
    return f"held-out loss was {loss.min():.4g} at best and is {loss[-1]:.4g} at the end."


def _displaced(run: Metrics) -> str | None:
    drift, ahead = run.ends("eval/drift_chosen"), run.ends("eval/accuracy")
    if None in (drift, ahead):
        return None
    if not (ahead.rose and drift.late < DRIFT):
        return ""
    return (
        f"the preferred answers lost {-drift.late:.3g} nats while {_change('accuracy', ahead)}: "
        "the other side fell further, and what rose instead is in neither."
    )


def _skipped(run: Metrics) -> str | None:
    skipped = run.values("skipped")
    if not len(skipped):
        return None
    if not skipped.any():
        return ""
    return f"{int(skipped.sum())} updates were not finite and were left out."


def _change(what: str, of: Ends) -> str:
    return f"{what} went from {number(of.early)} to {number(of.late)}"


@dataclass(frozen=True)
class Rule:
    """`judge` gives the warning in words, "" where there is nothing to say, None where what it
    reads was not logged. `gaming`: a sign of a gamed reward, else of poor learning."""

    title: str
    text: str
    judge: Callable[[Metrics], str | None]
    gaming: bool = True


RULES = (
    Rule(
        "KL balloons",
        "Score rose, and KL to the reference (held-out, else training) above "
        f"{KL_PER_TOKEN:g} nats a token at the end.",
        _kl,
    ),
    Rule(
        "Length moves with the score",
        f"Score rose, and length grew or shrank by a factor of {LENGTH_FACTOR:g} or more.",
        _length,
    ),
    Rule(
        "Gold falls while the proxy rises",
        "Of a watched score that is not trained on: fell from its best tenth to the end, while the "
        "score that is trained on rose from there.",
        _gold,
    ),
    Rule(
        "Entropy collapse",
        f"Entropy at the end at most {ENTROPY_LEFT:.0%} of the beginning.",
        _entropy,
    ),
    Rule(
        "Answers repeat themselves",
        f"Held-out distinct-2 at the end at most {DISTINCT_LEFT:.0%} of the beginning.",
        _repeats,
    ),
    Rule(
        "Answers unlike the reference",
        f"The reference's perplexity of held-out answers at least {PERPLEXITY_FACTOR:g} times its "
        "beginning.",
        _unlike,
    ),
    Rule(
        "Held-out score falls",
        "Training score rose, held-out score fell.",
        _held_out,
    ),
    Rule(
        "More answers cut off",
        f"Share of answers without an end token up by more than {CUT_MORE:g}.",
        _cut,
        gaming=False,
    ),
    Rule(
        "Groups without a signal",
        f"At least {EQUAL_GROUPS:.0%} of groups of two or more score all alike at the end.",
        _equal,
        gaming=False,
    ),
    Rule(
        "Sampler and trainer disagree",
        f"Mean |log π trainer − log π sampler| above {GAP:g} nats a token at the end.",
        _gap,
        gaming=False,
    ),
    Rule(
        "Much is clipped",
        f"At least {CLIPPED:.0%} of tokens clipped at the end, both signs together.",
        _clipped,
        gaming=False,
    ),
    Rule(
        "Over-fitting",
        f"Held-out loss at the end above {LOSS_ABOVE_BEST:g} times its best, of 3 or more.",
        _overfit,
        gaming=False,
    ),
    Rule(
        "Preferred answers lose as well",
        f"Held-out accuracy rose, and preferred answers drifted below {DRIFT:g} nats.",
        _displaced,
        gaming=False,
    ),
    Rule("Updates left out", "Any update was not finite.", _skipped, gaming=False),
)
