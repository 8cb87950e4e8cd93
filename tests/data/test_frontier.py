"""The frontier of what is solved: which prompts are taken, and that a resume takes the same."""

import json

import numpy as np
import pytest
from character_tokenizer import CharacterTokenizer

from rlhf_jax.data.frontier import Frontier, FrontierConfig
from rlhf_jax.data.prompts import PromptSet
from rlhf_jax.errors import ConfigError
from rlhf_jax.types import replace

N, P, G = 12, 3, 4
CFG = FrontierConfig(threshold=0.5, visits=2, revisit=0.0)


def prompts(rows=N):
    return PromptSet.from_rows(
        [{"prompt": f"p{i}"} for i in range(rows)], CharacterTokenizer(), max_prompt_tokens=5
    )


def frontier(cfg=CFG, *, seen=None, rows=N, seed=0):
    return Frontier(cfg, prompts(rows), seed, {} if seen is None else seen)


def note(front, prompt_id, scores, valid=None):
    valid = np.ones(len(scores), bool) if valid is None else np.asarray(valid)
    front.note(np.asarray([prompt_id]), np.asarray(scores, np.float32), valid)


def always(ids, wrong=()):
    """Solved prompts `ids` and unsolved prompts `wrong`, as two visits made them."""
    front = frontier()
    for prompt_id in [*ids, *ids]:
        note(front, prompt_id, [1.0] * G)
    for prompt_id in [*wrong, *wrong]:
        note(front, prompt_id, [0.0] * G)
    return front.seen


def taken(front, batches, position=0):
    ids = []
    for _ in range(batches):
        batch, position = front.next_batch(position, P)
        assert len(set(batch.id_P.tolist())) == P
        ids.append(batch.id_P.tolist())
    return ids, position


def test_visits_in_a_row_settle_a_prompt_and_one_mixed_visit_unsettles_it():
    front = frontier()
    note(front, 3, [0.5, 0.9, 1, 7])  # the threshold itself is right, whatever the range
    assert front.state_of(3) == 0
    note(front, 3, [1, 1, 1, 1])
    assert front.state_of(3) == 1
    note(front, 3, [1, 1, 0, 1])
    assert front.state_of(3) == 0
    note(front, 3, [0.4, 0, -8, 0])
    note(front, 3, [1, 1, 1, 1])  # not two of a kind in a row
    assert front.state_of(3) == 0
    note(front, 3, [0] * 4)
    note(front, 3, [0] * 4)
    assert front.state_of(3) == -1
    assert front.seen["3"] == [7, 28, 4 + 4 + 3 + 0 + 4, -2]


def test_rows_that_no_function_scores_count_nothing():
    front = frontier()
    for _ in range(2):
        note(front, 0, [1, 0, 1, 0], [True, False, True, False])
        note(front, 1, [0, 0, 0, 0], [False] * 4)
    assert front.state_of(0) == 1 and "1" not in front.seen
    assert front.seen["0"] == [2, 4, 4, 2]


def test_settled_prompts_are_passed_over():
    seen = always(range(4), wrong=range(4, 8))
    ids, position = taken(frontier(seen=seen), 8)
    assert sorted(set(np.concatenate(ids).tolist())) == [8, 9, 10, 11]
    # 24 of the 4 in 12 that are left, but for the last few: about 72 candidates
    assert 60 < position <= 84
    untouched, position = taken(frontier(), 8)
    assert sorted(set(np.concatenate(untouched).tolist())) == list(range(12)) and position == 24


def test_revisits_come_at_their_rate():
    half_settled = frontier(replace(CFG, revisit=0.25), seen=always(range(300)), rows=600)
    ids, position = taken(half_settled, 400)
    count = np.bincount(np.concatenate(ids), minlength=600)
    assert position > 1200
    assert count[:300].mean() / count[300:].mean() == pytest.approx(0.25, abs=0.04)


def test_revisit_1_filters_nothing():
    one = frontier(replace(CFG, revisit=1.0), seen=always(range(12)))
    assert taken(one, 8) == taken(frontier(), 8)


def test_a_dataset_without_a_frontier_left_still_gives_batches():
    front = frontier(seen=always(range(6), wrong=range(6, 12)))
    _, position = taken(front, 2)
    # one epoch is looked through in vain, then what comes is taken
    assert position == 2 * (N + P)


def test_the_choice_depends_on_seed_position_and_statistics_alone():
    seen = always(range(4))
    cfg = replace(CFG, revisit=0.3)
    straight, end = taken(frontier(cfg, seen=seen), 6)
    first, middle = taken(frontier(cfg, seen=seen), 3)
    # through JSON, as a checkpoint keeps it
    again = json.loads(json.dumps(seen))
    rest, position = taken(frontier(cfg, seen=again), 3, middle)
    assert first + rest == straight and position == end
    assert taken(frontier(cfg, seen=seen, seed=1), 6)[0] != straight


def test_the_numbers():
    front = frontier(seen=always(range(3), wrong=[3]))
    note(front, 5, [1, 0, 0, 0])
    numbers = front.numbers()
    assert numbers["frontier/visited"] == pytest.approx(5 / 12)
    assert numbers["frontier/solved"] == pytest.approx(3 / 12)
    assert numbers["frontier/unsolved"] == pytest.approx(1 / 12)
    assert numbers["frontier/right"] == pytest.approx((24 + 0 + 1) / (24 + 8 + 4))


@pytest.mark.parametrize(
    "change", [{"visits": 0}, {"revisit": 1.5}, {"revisit": -0.1}, {"threshold": float("nan")}]
)
def test_numbers_out_of_range(change):
    with pytest.raises(ConfigError, match=next(iter(change))):
        replace(CFG, **change)
