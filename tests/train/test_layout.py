"""Layouts: every counted token has one place, responses are whole, prompts are run once."""

import numpy as np
import pytest

from rlhf_jax.errors import ConfigError
from rlhf_jax.train.layout import Sizes, columns_run, lay_out

L = 3


def mask_of(lengths, room):
    mask_BR = np.arange(room) < np.asarray(lengths)[:, None]
    return np.pad(mask_BR, ((0, 0), (L, 0)))


def cells(layout, b):
    start = layout.start_B[b]
    return {
        (layout.slot_B[b], layout.block_B[b], c) for c in range(start, start + layout.length_B[b])
    }


def test_every_counted_token_has_a_place_of_its_own():
    draw = np.random.default_rng(0)
    for _ in range(20):
        group_B = draw.permutation(np.repeat(np.arange(6), 5))
        mask_BT = mask_of(draw.integers(0, 9, 30), room=8)
        sizes = Sizes.of(30, 6, 5, 8, micro_rows=4, shards=2)
        layout = lay_out(mask_BT, group_B, sizes, prompt_columns=L)
        places = [cells(layout, b) for b in range(30)]
        assert [len(p) for p in places] == mask_BT.sum(axis=1).tolist()
        assert len(set().union(*places)) == mask_BT.sum(), "two responses in one place"
        for b in np.flatnonzero(layout.length_B):
            slot = layout.slot_B[b]
            assert group_B[layout.prompt_EP.reshape(-1)[slot]] == group_B[b]
            assert layout.start_B[b] + layout.length_B[b] <= 8
            assert layout.block_B[b] < layout.steps_E[slot // sizes.prompts] * sizes.at_once
        owners = {(slot, group_B[b]) for b, slot in enumerate(layout.slot_B) if places[b]}
        assert len(owners) == len({g for _, g in owners}), "a prompt is run twice"
        assert (np.diff(layout.steps_E) <= 0).all()


def test_a_gap_is_run_and_what_follows_the_last_counted_token_is_not():
    mask_BT = mask_of([0, 0], room=6)
    mask_BT[0, [L, L + 3]] = True
    layout = lay_out(
        mask_BT, np.zeros(2, int), Sizes.of(2, 1, 2, 6, micro_rows=None, shards=1), prompt_columns=L
    )
    assert layout.length_B.tolist() == [4, 0]


def test_short_responses_share_blocks():
    """Sixteen responses of 23 tokens together need three blocks of 8."""
    sizes = Sizes.of(16, 1, 16, 8, micro_rows=1, shards=1)
    layout = lay_out(mask_of([8] + 15 * [1], room=8), np.zeros(16, int), sizes, prompt_columns=L)
    assert layout.steps_E.tolist() == [3]
    assert columns_run(layout, 8) == L + 3 * 8
    nothing = lay_out(mask_of(16 * [0], room=8), np.zeros(16, int), sizes, prompt_columns=L)
    assert columns_run(nothing, 8) == 0


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((64, 8, 8, 64, 16, 1), Sizes(sets=1, prompts=8, blocks=8, at_once=2)),
        ((64, 8, 8, 64, None, 1), Sizes(sets=1, prompts=8, blocks=8, at_once=4)),
        ((128, 8, 16, 512, None, 1), Sizes(sets=2, prompts=4, blocks=16, at_once=1)),
        ((128, 8, 16, 512, 2, 1), Sizes(sets=4, prompts=2, blocks=16, at_once=1)),
        ((128, 8, 16, 8192, None, 4), Sizes(sets=2, prompts=4, blocks=16, at_once=1)),
        ((8, 64, 4, 9, 3, 2), Sizes(sets=4, prompts=2, blocks=4, at_once=1)),
        ((12, 3, 4, 9, 64, 2), Sizes(sets=1, prompts=4, blocks=4, at_once=4)),
    ],
)
def test_sizes_follow_micro_rows_and_shards(arguments, expected):
    *batch, micro_rows, shards = arguments
    assert Sizes.of(*batch, micro_rows=micro_rows, shards=shards) == expected


def test_rows_that_do_not_fit_are_told():
    with pytest.raises(ConfigError, match="3 prompts with up to 1 blocks"):
        lay_out(
            mask_of(3 * [6], room=6),
            np.arange(3),
            Sizes.of(3, 2, 2, 6, micro_rows=None, shards=1),
            prompt_columns=L,
        )
