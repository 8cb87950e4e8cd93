"""Options of another kind than they say, as a file (not a command line) may hold them."""

import numpy as np
import pytest
from toy import online_config, preference_config, share_of_low_bytes

from rlhf_jax.algorithms.grpo import grpo
from rlhf_jax.bind import bind
from rlhf_jax.errors import ConfigError
from rlhf_jax.loops.evaluate import EvalConfig
from rlhf_jax.models.lora import LoraConfig
from rlhf_jax.train.optim import OptimConfig


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: online_config("m", "o", prompts="a.jsonl"),
            "prompts='a.jsonl' is a str; it takes a f",
        ),
        (lambda: online_config("m", "o", num_steps="3"), "num_steps='3' is a str; .* whole number"),
        (
            lambda: online_config("m", "o", num_steps=2.5),
            "num_steps=2.5 is a float; .* whole number",
        ),
        (
            lambda: online_config("m", "o", objective="grpo"),
            "objective='grpo' is a str; it takes Po",
        ),
        (lambda: online_config("m", "o", optim=None), "optim=None is left out; it takes OptimConf"),
        (lambda: online_config("m", "o", lora=8), "lora=8 is an int; it takes LoraConfig or None"),
        (
            lambda: online_config("m", "o", rewards=("vader",)),
            r"not its name, but bind\(vader, \.\.\.",
        ),
        (
            lambda: online_config("m", "o", restart="yes"),
            "restart='yes' is a str; .* True or False",
        ),
        (
            lambda: preference_config("m", "o", objective=grpo()),
            "…? is a PolicyObjective; it takes Pr",
        ),
        (lambda: LoraConfig(targets="q"), "lora.targets='q' is a str; it takes a tuple"),
        (lambda: EvalConfig(ks=(1.5,)), "evaluation.ks=1.5 is a float; it takes a whole number"),
        (lambda: OptimConfig(learning_rate="1e-3"), "optim.learning_rate='1e-3' is a str"),
    ],
)
def test_an_option_of_another_kind_is_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_what_works_is_taken(tmp_path):
    taken = dict(num_steps=np.int64(3), rewards=[bind(share_of_low_bytes)], seed=np.int32(1))
    assert online_config(tmp_path / "model", tmp_path, **taken).num_steps == 3
