"""Numbers of a step from the records of its updates."""

import jax
import jax.numpy as jnp
import pytest

from rlhf_jax.ops.totals import Peak, Share, Total
from rlhf_jax.train.metrics import bad_rows, memory_used, update_numbers


def test_memory_of_the_process_and_of_devices_that_count(monkeypatch):
    numbers = memory_used()
    assert 0.05 < numbers["memory/host"] < 1000 and "memory/device" not in numbers

    class Device:
        def __init__(self, peak):
            self.peak = peak

        def memory_stats(self):
            return {"peak_bytes_in_use": self.peak}

    monkeypatch.setattr(jax, "local_devices", lambda: [Device(2**30), Device(3 * 2**30)])
    assert memory_used()["memory/device"] == 3.0


def update(loss, total, count, peak, rate, skipped=False, bad=()):
    return {
        "loss": Share(part=jnp.float32(loss)),
        "entropy": Total(sum=jnp.float32(total), count=jnp.float32(count)),
        "ratio_max": Peak(peak=jnp.float32(peak)),
        "grad_norm": jnp.float32(2 * loss),
        "learning_rate": jnp.float32(rate),
        "updates": jnp.int32(rate),
        "skipped": jnp.bool_(skipped),
        "rows_bad_B": jnp.zeros(4, bool).at[jnp.array(bad, int)].set(True),
    }


def test_totals_are_pooled_and_the_rest_is_averaged():
    numbers = update_numbers([update(1.0, 10.0, 10.0, 1.5, 1), update(3.0, 0.0, 90.0, 1.2, 2)])
    assert numbers == pytest.approx(
        {
            "loss": 2.0,
            "entropy": 0.1,  # 10 nats on 100 tokens, not the mean .5 of the two means
            "ratio_max": 1.5,
            "grad_norm": 4.0,
            "learning_rate": 2.0,
            "updates": 2.0,
            "skipped": 0.0,
        }
    )


def test_a_skipped_update_is_counted_and_named_and_enters_nothing():
    broken = update(float("nan"), float("nan"), 5.0, float("inf"), 9, skipped=True, bad=[1, 3])
    numbers = update_numbers([update(1.0, 10.0, 10.0, 1.5, 1), broken])
    assert numbers["skipped"] == 1.0
    assert numbers["loss"] == 1.0 and numbers["entropy"] == 1.0 and numbers["updates"] == 1.0
    assert bad_rows([update(1.0, 1.0, 1.0, 1.0, 1), broken]) == {1: [1, 3]}
    assert update_numbers([broken]) == {"skipped": 1.0}


def test_what_counted_nothing_is_absent():
    assert "entropy" not in update_numbers([update(1.0, 0.0, 0.0, 1.0, 1)])
