import pytest

from rlhf_jax.data.spin import spin_pairs
from rlhf_jax.errors import ConfigError

SHOWN = [
    {"prompt": "a", "completion": "real", "completion_ids": [7, 8]},
    {"prompt": "b", "completion": "true"},
]


def drawn(prompt, *completions):
    texts, ids = zip(*completions, strict=True)
    row = {"prompt": prompt, "prompt_ids": [1], "completions": list(texts)}
    return {**row, "completion_ids": [list(i) for i in ids]}


def test_the_demonstration_is_preferred_to_every_sample():
    samples = [drawn("b", ("x", [3])), drawn("a", ("y", [4]), ("real", [7, 8]), ("z", [5]))]
    pairs = spin_pairs(SHOWN, samples)
    assert [(p["prompt"], p["chosen"], p["rejected"]) for p in pairs] == [
        ("b", "true", "x"),
        ("a", "real", "y"),
        ("a", "real", "z"),  # what equals the demonstration is no pair
    ]
    assert pairs[1]["chosen_ids"] == [7, 8] and pairs[1]["rejected_ids"] == [4]
    assert "chosen_ids" not in pairs[0]  # its text is encoded


def test_what_cannot_be_paired():
    with pytest.raises(ConfigError, match="no demonstration answers the sampled prompt 'c'"):
        spin_pairs(SHOWN, [drawn("c", ("x", [3]))])
    with pytest.raises(ConfigError, match="nothing is left to learn"):
        spin_pairs(SHOWN, [drawn("a", ("real", [7, 8]))])
