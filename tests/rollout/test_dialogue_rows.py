"""Growing rows: left-packed, contexts that end in the last column, closed rows left alone."""

import numpy as np

from rlhf_jax.rollout.dialogue import DialogueRows
from rlhf_jax.types import Prompts, Rollout

PAD, L, R, N, G = 0, 3, 9, 2, 2


def begun():
    prompts = Prompts(
        tokens_PL=np.array([[0, 7, 8], [5, 6, 9]]),
        attend_PL=np.array([[False, True, True], [True, True, True]]),
        id_P=np.array([40, 3]),
        texts=["ab", "abc"],
        rows=[{}, {}],
    )
    return DialogueRows(prompts, num_samples=G, columns=R, pad_id=PAD)


def turn(rows, tokens, *, width=L, truncated=()):
    """A rollout of one turn; of a row without tokens nothing was drawn."""
    tokens_BT = np.full((4, width + N), 99)
    mask_BT = np.zeros((4, width + N), bool)
    for b, ids in enumerate(tokens):
        tokens_BT[b, width : width + len(ids)] = ids
        mask_BT[b, width : width + len(ids)] = True
    rows.write_turn(
        Rollout(
            tokens_BT=tokens_BT,
            attend_BT=mask_BT,
            mask_BT=mask_BT,
            logp_sampler_BT=-tokens_BT / 100,
            logp_full_BT=-tokens_BT / 50,
            entropy_BT=tokens_BT / 25,
            group_B=np.zeros(4),
            truncated_B=np.isin(np.arange(4), truncated),
        )
    )


def test_two_turns_with_an_observation_between():
    rows = begun()
    turn(rows, [[11, 2], [12, 13], [2], [14, 2]], truncated=[1])
    assert rows.last_turn(0) == ([7, 8], [11, 2]) and rows.last_turn(2) == ([5, 6, 9], [2])
    rows.reward(0, 0.5)
    rows.reward(1, None)
    rows.reward(2, -1.0)
    rows.open_B[[1, 3]] = False
    rows.write_observation(0, [21, 22, 23])
    rows.write_observation(2, [])
    assert [rows.room(b) for b in range(4)] == [4, 7, 8, 7]

    width = L + R - N
    tokens_BW, attend_BW = rows.contexts(width)
    assert tokens_BW.shape == (4, width) and tokens_BW.dtype == np.int32
    contexts = [row[mask].tolist() for row, mask in zip(tokens_BW, attend_BW, strict=True)]
    # closed rows show their prompt: nothing is drawn from it
    assert contexts == [[7, 8, 11, 2, 21, 22, 23], [7, 8], [5, 6, 9, 2], [5, 6, 9]]
    assert attend_BW[:, -1].all() and (tokens_BW[~attend_BW] == PAD).all()

    turn(rows, [[15, 2], [], [16, 17], []], width=width)
    rows.reward(0, 1.0)
    assert rows.last_turn(2) == ([5, 6, 9, 2], [16, 17])
    got = rows.rollout()
    assert got.tokens_BT[0].tolist() == [0, 7, 8, 11, 2, 21, 22, 23, 15, 2, 0, 0]
    assert got.tokens_BT[1].tolist() == [0, 7, 8, 12, 13] + [0] * 7
    assert got.mask_BT[0].astype(int).tolist() == [0, 0, 0, 1, 1, 0, 0, 0, 1, 1, 0, 0]
    assert got.attend_BT[0].astype(int).tolist() == [0] + [1] * 9 + [0, 0]
    np.testing.assert_allclose(got.logp_sampler_BT, np.where(got.mask_BT, -got.tokens_BT / 100, 0))
    np.testing.assert_allclose(got.logp_full_BT, np.where(got.mask_BT, -got.tokens_BT / 50, 0))
    np.testing.assert_allclose(got.entropy_BT, np.where(got.mask_BT, got.tokens_BT / 25, 0))
    assert np.flatnonzero(got.turns.end_BT[0]).tolist() == [4, 9]
    assert got.turns.score_BT[0, [4, 9]].tolist() == [0.5, 1.0]
    assert not got.turns.given_BT[1].any() and got.turns.given_BT[2].sum() == 1
    assert got.group_B.tolist() == [0, 0, 1, 1] and rows.id_B.tolist() == [40, 40, 3, 3]
    assert rows.sample_B.tolist() == [0, 1, 0, 1]
    # a turn cut short marks its row; the turn of another does not unmark it
    assert got.truncated_B.tolist() == [False, True, False, False]


def test_a_failed_row_keeps_its_tokens_and_no_reward():
    rows = begun()
    turn(rows, [[11, 2]] * 4)
    rows.reward(0, 1.0)
    rows.fail(0)
    got = rows.rollout()
    assert not rows.open_B[0] and rows.open_B[1:].all()
    assert got.mask_BT[0].sum() == 2
    assert not got.turns.given_BT[0].any() and not got.turns.score_BT[0].any()


def test_a_row_that_is_full_has_no_room():
    rows = begun()
    turn(rows, [[11, 2]] * 4)
    rows.write_observation(0, list(range(R - N)))
    assert [rows.room(b) for b in range(4)] == [0, R - N, R - N, R - N]
