import numpy as np
import pytest

from rlhf_jax.data.order import shuffled_batches
from rlhf_jax.errors import ConfigError


def steps(batches, n):
    return [batches[i].tolist() for i in range(n)]


def test_position_is_the_step():
    """Reading step 7 first, in a new dataset or again, gives what a straight run gives."""
    straight = steps(shuffled_batches(10, 3, 0, np.asarray), 12)
    jump = shuffled_batches(10, 3, 0, np.asarray)
    assert jump[7].tolist() == straight[7]
    assert steps(jump, 12) == straight
    assert all(0 <= row < 10 for batch in straight for row in batch)
    assert shuffled_batches(10, 3, 0, np.asarray)[10**9].shape == (3,)


def test_open_instruct_560_rows_are_shuffled_and_by_the_seed():
    orders = [np.concatenate(steps(shuffled_batches(10, 5, s, np.asarray), 4)) for s in (0, 0, 1)]
    assert orders[0][:10].tolist() != list(range(10))
    assert orders[0].tolist() == orders[1].tolist()
    assert orders[0].tolist() != orders[2].tolist()


def test_epochs_cover_differ_and_are_not_shared_by_neighbouring_seeds():
    epochs = {}
    for seed in (0, 1):
        batches = steps(shuffled_batches(12, 4, seed, np.asarray), 9)
        for epoch in range(3):
            rows = np.concatenate(batches[3 * epoch : 3 * epoch + 3]).tolist()
            assert sorted(rows) == list(range(12))
            epochs[seed, epoch] = tuple(rows)
    assert len(set(epochs.values())) == 6


def test_a_batch_never_holds_a_row_twice_and_every_row_comes_in_time():
    batches = steps(shuffled_batches(10, 4, 0, np.asarray), 40)
    assert all(len(set(batch)) == 4 for batch in batches)
    assert set(np.concatenate(batches)) == set(range(10))


def test_one_row():
    assert steps(shuffled_batches(1, 1, 0, np.asarray), 3) == [[0], [0], [0]]


@pytest.mark.parametrize(("rows", "batch"), [(3, 4), (3, 0), (0, 1)])
def test_a_batch_that_does_not_fit_is_refused(rows, batch):
    with pytest.raises(ConfigError, match=f"batch of {batch} rows"):
        shuffled_batches(rows, batch, 0, np.asarray)


def test_a_negative_seed_is_refused():
    with pytest.raises(ConfigError, match="seed=-1"):
        shuffled_batches(3, 1, -1, np.asarray)
