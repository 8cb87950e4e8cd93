"""From draws to a full batch: which groups are kept, and that every row stays with its own."""

import jax
import numpy as np
import pytest
from toy import online_config

from rlhf_jax.advantages import process_norm
from rlhf_jax.algorithms.dapo import dapo
from rlhf_jax.bind import bind
from rlhf_jax.loops.collect import fill_batch, judge, minibatches
from rlhf_jax.loops.functions import label
from rlhf_jax.models.tokenizer import byte_tokenizer
from rlhf_jax.types import PolicyBatch, Prompts, Rollout, replace

P, G, L, R = 4, 4, 3, 2
TOKENIZER = byte_tokenizer()


def one(prompts, completions, rows):
    return [1.0] * len(rows)


def spelled_score(prompts, completions, rows):
    """The score is the completion's last character; "?" does not apply."""
    return [None if text[-1] == "?" else float(text[-1]) for text in completions]


def config(**changes):
    options = dict(objective=dapo(max_length=4, cache=2), rewards=(bind(spelled_score),))
    return online_config("no/model", "no/out", num_steps=3, **options | changes)


def drawn(attempt: int, scores: list[str]):
    """Prompt p of an attempt is "ap"; its sample g is "gs", whose score s is scores[p][g].

    Every per-token array holds the row's own number, so that a row which lost its company shows.
    """
    texts = [f"{attempt}{p}" for p in range(P)]
    ids = np.array([TOKENIZER.encode(text) for text in texts], np.int32)
    answers = [f"{g}{s}" for row in scores for g, s in enumerate(row)]
    tokens_BR = np.array([TOKENIZER.encode(a, add_bos=False) for a in answers], np.int32)
    number_B = np.arange(P * G) + 100.0 * attempt
    number_BT = np.broadcast_to(number_B[:, None], (P * G, L + R)).astype(np.float32)
    mask_BT = np.broadcast_to((np.arange(L + R) >= L)[None], (P * G, L + R))
    rollout = Rollout(
        tokens_BT=np.concatenate([np.repeat(ids, G, axis=0), tokens_BR], axis=1),
        attend_BT=np.ones((P * G, L + R), bool),
        mask_BT=mask_BT,
        logp_sampler_BT=-number_BT,
        logp_full_BT=-number_BT,
        entropy_BT=number_BT,
        group_B=np.repeat(np.arange(P, dtype=np.int32), G),
        truncated_B=np.zeros(P * G, bool),
    )
    prompts = Prompts(
        tokens_PL=ids,
        attend_PL=np.ones((P, L), bool),
        id_P=np.arange(P, dtype=np.int32),
        texts=texts,
        rows=[{"text": text} for text in texts],
    )
    return prompts, rollout


def filled(draws: list[list[str]], **changes):
    asked = []

    def draw(attempt):
        asked.append(attempt)
        return drawn(attempt, draws[attempt])

    rollout, judged, count = fill_batch(config(**changes), draw, TOKENIZER)
    assert asked == list(range(count))
    check_rows_belong_together(rollout, judged)
    return rollout, judged, count


def check_rows_belong_together(rollout, judged):
    for b in range(P * G):
        text = TOKENIZER.decode(rollout.tokens_BT[b])
        assert text == judged.prompts[b] + judged.completions[b]
        spelled = text[-1]
        assert bool(judged.valid_BC[b, 0]) == (spelled != "?")
        assert judged.score_BC[b, 0] == (0 if spelled == "?" else float(spelled))
        attempt, p, g = map(int, text[:3])
        number = 100 * attempt + G * p + g
        assert (rollout.logp_full_BT[b] == -number).all()
        assert (rollout.logp_sampler_BT[b] == -number).all()
        assert (rollout.entropy_BT[b] == number).all()
    # groups are whole, told by ids, and their prompts are one
    np.testing.assert_array_equal(rollout.group_B, np.repeat(np.arange(P), G))
    for p in range(P):
        assert len(set(judged.prompts[G * p : G * p + G])) == 1
        assert [c[0] for c in judged.completions[G * p : G * p + G]] == list("0123")


def labelled(cfg, rollout, judged):
    scores = {"score_BC": judged.score_BC, "valid_BC": judged.valid_BC}
    nothing = dict.fromkeys(("logp_old_BT", "logp_ref_BT", "value_BT", "last_value_B"))
    batch, numbers = jax.jit(label)(cfg.objective, rollout, scores, nothing)
    return jax.device_get((batch, numbers))


def test_a_full_first_draw_is_enough():
    rollout, judged, count = filled([["0101", "2334", "1000", "9998"]])
    assert count == 1
    assert judged.prompts[::G] == ["00", "01", "02", "03"]
    assert labelled(config(), rollout, judged)[0].mask_BT.any(axis=1).all()


def test_it_draws_until_enough_groups_are_mixed():
    draws = [
        ["1111", "0101", "0000", "????"],  # one group of four differs
        ["5555", "5556", "?1?1", "1?02"],  # a lone score twice does not differ; 1, 0, 2 do
        ["1112", "3334", "5556", "7778"],  # more than needed: the first come in
    ]
    rollout, judged, count = filled(draws)
    assert count == 3
    assert judged.prompts[::G] == ["01", "11", "13", "20"]
    batch, numbers = labelled(config(), rollout, judged)
    kept_B = np.array([text[-1] != "?" for text in judged.completions])
    np.testing.assert_array_equal(batch.mask_BT.any(axis=1), kept_B)
    assert numbers["groups_kept"] == 1 and numbers["groups_equal"] == 0


def test_what_cannot_be_filled_in_the_budget_is_masked():
    draws = [["1111", "0101", "0000", "2222"], ["3333", "4444", "5555", "6666"]]
    rollout, judged, count = filled(draws, max_resample=2)
    assert count == 2
    # the kept group first, then others in the order drawn, as fill
    assert judged.prompts[::G] == ["01", "00", "02", "03"]
    batch, numbers = labelled(config(), rollout, judged)
    np.testing.assert_array_equal(batch.mask_BT.any(axis=1), np.arange(P * G) < G)
    assert not batch.advantage_BT[G:].any()
    assert numbers["groups_kept"] == 0.25 and numbers["groups_equal"] == 0.75


def test_nothing_mixed_leaves_an_empty_batch():
    rollout, judged, count = filled([["1111"] * P] * 2, max_resample=2)
    assert count == 2
    batch, _ = labelled(config(), rollout, judged)
    assert not batch.mask_BT.any() and not batch.advantage_BT.any()


def test_groups_are_judged_before_the_length_penalty():
    # lengths differ, so the shaped scores do; the scores themselves are equal
    def draw(attempt):
        prompts, rollout = drawn(attempt, ["1111"] * P)
        mask_BT = rollout.mask_BT.copy()
        mask_BT[::2, -1] = False
        return prompts, replace(rollout, mask_BT=mask_BT)

    cfg = config(objective=dapo(max_length=2, cache=1), max_resample=1, rewards=(bind(one),))
    rollout, judged, _ = fill_batch(cfg, draw, TOKENIZER)
    batch, numbers = labelled(cfg, rollout, judged)
    assert numbers["groups_kept"] == 0 and not batch.mask_BT.any()


def test_without_a_filter_one_draw_is_the_batch():
    cfg = config(objective=replace(dapo(), keep_group=None))
    prompts, rollout = drawn(0, ["1111"] * P)
    got, judged, count = fill_batch(cfg, lambda attempt: (prompts, rollout), TOKENIZER)
    assert got is rollout and count == 1 and judged.prompts[0] == "00"


def test_the_judge_reads_what_was_sampled():
    prompts, rollout = drawn(0, ["1234"] * P)
    seen = {}

    def remember(texts, completions, rows):
        seen.update(texts=texts, completions=completions, rows=rows)
        return [0.0] * len(texts)

    cfg = config()
    object.__setattr__(cfg, "rewards", (remember,))
    judge(cfg, TOKENIZER, prompts, rollout)
    assert seen["texts"] == [f"0{p}" for p in range(P) for _ in range(G)]
    assert seen["completions"] == ["01", "12", "23", "34"] * P
    assert [row["text"] for row in seen["rows"]] == seen["texts"]


def greedy_of(prompts):
    """One answer a prompt, "z" and a score: 5 for the first prompt of a draw, one more each."""
    answers = [TOKENIZER.encode(f"z{5 + p}", add_bos=False) for p in range(P)]
    if prompts.texts[0] == "00":
        answers[1] = TOKENIZER.encode("z?", add_bos=False)  # that nobody can score
    tokens_BT = np.concatenate([prompts.tokens_PL, np.asarray(answers, np.int32)], axis=1)
    zero_BT = np.zeros(tokens_BT.shape, np.float32)
    return Rollout(
        tokens_BT=tokens_BT,
        attend_BT=zero_BT == 0,
        mask_BT=np.broadcast_to((np.arange(L + R) >= L)[None], (P, L + R)),
        logp_sampler_BT=zero_BT,
        logp_full_BT=zero_BT,
        entropy_BT=zero_BT,
        group_B=np.arange(P, dtype=np.int32),
        truncated_B=np.zeros(P, bool),
    )


def watched(prompts, completions, rows):
    return [None if text[0] == "1" else ord(text[-1]) / 2 for text in completions]


def middle_and_end(prompts, completions, rows):
    return [[(1, 0.5), (2, float(ord(c[1])))] for c in completions]


def test_what_is_known_of_a_row_follows_it_through_the_filter():
    """Baseline, watched score and steps, as the kept groups of two draws are put together."""
    draws = [["1111", "0101", "0000", "2222"], ["5555", "5556", "1212", "1102"]]
    cfg = config(
        objective=replace(dapo(), advantage=bind(process_norm)),
        watch=(bind(watched),),
        process_reward=bind(middle_and_end),
    )
    _, judged, count = fill_batch(
        cfg, lambda attempt: drawn(attempt, draws[attempt]), TOKENIZER, greedy=greedy_of
    )
    assert count == 2 and judged.prompts[::G] == ["01", "11", "12", "13"]
    assert judged.baseline_B.tolist() == [0] * G + [6] * G + [7] * G + [8] * G
    for b, text in enumerate(judged.completions):
        assert bool(judged.watch_valid_BC[b, 0]) == (text[0] != "1")
        assert judged.watch_BC[b, 0] == (0 if text[0] == "1" else ord(text[-1]) / 2)
        assert np.flatnonzero(judged.step_end_BT[b]).tolist() == [L, L + 1]
        assert judged.step_score_BT[b, L:].tolist() == [0.5, ord(text[1])]
    assert judged.scores().keys() == {
        *("score_BC", "valid_BC", "baseline_B", "step_end_BT", "step_score_BT")
    }
    means = judged.means(cfg.rewards, cfg.watch)
    assert means.keys() == {"watch/watched"}
    told = judged.watch_BC[judged.watch_valid_BC[:, 0]]
    assert means["watch/watched"] == pytest.approx(told.mean())
    record = judged.records(cfg.rewards, cfg.watch)[1]
    assert record["spelled_score"] == 1 and record["watched"] is None


def test_several_scores_are_reported_apart():
    cfg = config(rewards=(bind(spelled_score), bind(one)), reward_weights=(2.0, 1.0))
    prompts, rollout = drawn(0, ["?1?1"] * P)
    judged = judge(cfg, TOKENIZER, prompts, rollout)
    assert judged.means(cfg.rewards) == {"score/spelled_score": 2.0, "score/one": 1.0}
    assert judged.scores().keys() == {"score_BC", "valid_BC"}


def fails_on_5(prompts, completions, rows):
    if any(text[-1] == "5" for text in completions):
        raise RuntimeError("five")
    return [1.0] * len(rows)


def test_rows_that_a_function_fails_on_are_left_out_and_counted_over_all_draws():
    draws = [["1591", "1111", "1111", "1111"], ["1511", "1151", "1111", "1111"]]
    rewards = (bind(spelled_score), bind(fails_on_5))
    _, judged, count = filled(draws, rewards=rewards, max_resample=2, reward_errors="skip")
    assert count == 2
    is_5 = np.array([text[-1] == "5" for text in judged.completions])
    assert (judged.valid_BC[:, 1] == ~is_5).all() and judged.valid_BC[:, 0].all()
    assert judged.means(rewards)["reward_failures/fails_on_5"] == 3
    assert judged.seconds().keys() == {
        "reward_seconds/spelled_score",
        "reward_seconds/fails_on_5",
    }
    with pytest.raises(RuntimeError, match="five"):
        filled(draws, rewards=rewards)


class Noted:
    def __init__(self):
        self.visits = []

    def note(self, id_P, score_B, valid_B):
        self.visits.append((id_P.tolist(), score_B.tolist(), valid_B.tolist()))


def test_a_frontier_hears_of_every_draw():
    draws = [["1111", "0101", "0000", "????"], ["5555", "5556", "1212", "1102"]]
    noted = Noted()
    fill_batch(
        config(max_resample=2),
        lambda attempt: drawn(attempt, draws[attempt]),
        TOKENIZER,
        frontier=noted,
    )
    for attempt, (id_P, score_B, valid_B) in enumerate(noted.visits):
        assert id_P == [0, 1, 2, 3]
        spelled = "".join(draws[attempt])
        assert valid_B == [c != "?" for c in spelled]
        assert score_B == [0 if c == "?" else float(c) for c in spelled]
    assert len(noted.visits) == 2


def batch_of_rows(rows):
    x_BT = np.repeat(np.arange(rows, dtype=np.float32)[:, None], 3, axis=1)
    return PolicyBatch(
        tokens_BT=x_BT.astype(np.int32),
        attend_BT=x_BT >= 0,
        mask_BT=x_BT >= 0,
        group_B=np.arange(rows, dtype=np.int32) // G,
        advantage_BT=x_BT,
        logp_old_BT=-x_BT,
    )


@pytest.mark.parametrize("minibatch_rows", [4, 8, 16, None])
def test_every_epoch_sees_each_row_once_and_whole(minibatch_rows):
    cfg = config(num_epochs=2, minibatch_rows=minibatch_rows)
    parts = list(minibatches(cfg, batch_of_rows(16), step=3))
    assert len(parts) == cfg.updates_per_step == 2 * 16 // (minibatch_rows or 16)
    orders = []
    for part in parts:
        number_B = np.asarray(part.tokens_BT[:, 0])
        np.testing.assert_array_equal(part.advantage_BT[:, 0], number_B)
        np.testing.assert_array_equal(part.logp_old_BT[:, 0], -number_B)
        np.testing.assert_array_equal(part.group_B, number_B // G)
        orders.append(number_B)
    first, second = np.split(np.concatenate(orders), 2)
    assert sorted(first) == sorted(second) == list(range(16))
    if minibatch_rows in (4, 8):
        # another order in each epoch and each step, the same one when asked again
        assert first.tolist() != second.tolist()
        again = [p.tokens_BT[:, 0] for p in minibatches(cfg, batch_of_rows(16), step=3)]
        other = [p.tokens_BT[:, 0] for p in minibatches(cfg, batch_of_rows(16), step=4)]
        assert np.concatenate(again).tolist() == [*first, *second]
        assert np.concatenate(other).tolist() != [*first, *second]
