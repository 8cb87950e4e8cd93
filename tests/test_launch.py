"""The command line of a config, and how a run ends."""

import dataclasses
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import jax
import pytest

from experiments.launch import argument_help, field_help, launch, parse
from rlhf_jax.algorithms.grpo import grpo
from rlhf_jax.algorithms.objective import PolicyObjective
from rlhf_jax.algorithms.ppo import ppo
from rlhf_jax.bind import Bound, bind
from rlhf_jax.errors import ConfigError, Interrupted, check_number


def sums(*, size: int = 10, path: str = "a", limit: float | None = None):
    """Rows.

    Args:
        size: of the
            data set.
        path, limit: where, and how long.
    """


def length(prompts, completions, rows, *, scale: float, inner=None, other=None):
    """Scores.

    scale: factor of the length.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """Shared options."""

    out: str
    """The run
    folder."""
    seed: int = 0
    """Of every draw."""

    def __post_init__(self):
        check_number("seed", self.seed, low=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    data: int = -1
    """Copies."""

    def __post_init__(self):
        if self.data == 0:
            raise ConfigError("mesh.data=0; take a positive number")


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(Base):
    objective: PolicyObjective
    """The algorithm."""
    prompts: Bound
    """The data."""
    rewards: tuple[Bound, ...]
    """The scores."""
    weights: tuple[float, ...] = ()
    """One a reward."""
    every: int | None = None
    """Steps between evaluations."""
    restart: bool = False
    """Begin anew."""
    mesh: Mesh = dataclasses.field(default_factory=Mesh)
    """Devices."""


CONFIG = Config(
    out="runs/a",
    objective=grpo(),
    prompts=bind(sums, size=20),
    rewards=(bind(length, scale=0.5, inner=bind(length, scale=2.0)), bind(length, scale=1.0)),
)


@pytest.fixture(autouse=True)
def wide_and_quiet(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "")


def ended(capsys, argv, run=lambda config: None, default=CONFIG):
    """Exit code, standard output and error of a launch that ends the process."""
    with pytest.raises(SystemExit) as stop:
        launch(default, run, argv)
    captured = capsys.readouterr()
    return stop.value.code, captured.out, captured.err


@pytest.mark.parametrize("objective", [grpo(), ppo()])
def test_without_options_the_config_is_the_default(objective):
    config = replace(CONFIG, objective=objective)
    assert parse(config, []) == config
    assert launch(config, lambda c: c, []) == config


def test_options_reach_every_depth():
    argv = (
        "--out b --seed 3 --every 5 --restart --weights 1 -2.5 --mesh.data 4 "
        "--objective.surrogate.low 0.1 --objective.loss-kl.coef 0 --objective.entropy 0.01 "
        "--objective.advantage.ddof 1 --prompts.limit 2.5 --prompts.path x "
        "--rewards.0.inner.scale 3 --rewards.1.scale -4"
    )
    config = parse(CONFIG, argv.split())
    assert config == Config(
        out="b",
        seed=3,
        every=5,
        restart=True,
        weights=(1.0, -2.5),
        mesh=Mesh(data=4),
        objective=replace(
            grpo(low=0.1, beta=0.0, ddof=1),
            entropy=0.01,
        ),
        prompts=bind(sums, size=20, limit=2.5, path="x"),
        rewards=(
            bind(length, scale=0.5, inner=bind(length, scale=3.0)),
            bind(length, scale=-4.0),
        ),
    )
    # "0" has become a float, so it is traced: other numbers are no other program
    other_numbers = replace(grpo(low=0.3, beta=0.5, ddof=1), entropy=0.5)
    assert jax.tree.structure(config.objective) == jax.tree.structure(other_numbers)


def test_off_is_none():
    config = replace(CONFIG, every=7, objective=replace(grpo(), entropy=0.1))
    config = parse(config, ["--every", "None", "--objective.entropy", "None"])
    assert config.every is None and config.objective.entropy is None


def test_help_shows_every_field_with_type_default_and_a_line(capsys):
    code, out, _ = ended(capsys, ["--help"], default=replace(CONFIG, objective=ppo()))
    assert code == 0
    shown = " ".join(out.replace("│", " ").split())
    for text in (
        "--out STR The run folder. (default: runs/a)",
        "--seed INT Of every draw. (default: 0)",
        "--every {None}|INT Steps between evaluations. (default: None)",
        "--restart, --no-restart Begin anew. (default: False)",
        "--mesh.data INT Copies. (default: -1)",
        "--prompts.size INT of the data set. (default: 20)",
        "--prompts.limit {None}|FLOAT where, and how long. (default: None)",
        "--rewards.0.inner.scale FLOAT factor of the length. (default: 2.0)",
    ):
        assert text in shown, text
    # a function is shown and cannot be set; nor can a part that is absent
    assert (
        "--prompts.fn {fixed} The function: swapped in a file, not here. (fixed to: sums)" in shown
    )
    assert "--objective.surrogate.fn {fixed}" in shown and "(fixed to: clipped)" in shown
    assert "--objective.keep-group {fixed}" in shown and "(fixed to: none)" in shown
    for field in dataclasses.fields(PolicyObjective):
        assert f"objective.{field.name.replace('_', '-')}" in shown
    for part in ("surrogate.low", "value.coef", "reward-kl.coef", "advantage.gamma"):
        assert f"--objective.{part} FLOAT" in shown


@pytest.mark.parametrize(
    ("argv", "messages"),
    [
        (["--sede", "3"], ["Unrecognized", "--sede", "--seed INT"]),
        (["--objective.surogate.low", "3"], ["Unrecognized", "--objective.surrogate.low FLOAT"]),
        (["--rewards.0.scal", "3"], ["Unrecognized", "--rewards.0.scale FLOAT"]),
        (["--seed", "x"], ["--seed", "'x'"]),
        (["--seed"], ["--seed"]),
        (["--prompts.fn", "other"], ["fixed to 'sums'"]),
        (["--objective.surrogate.low", "-0.1"], ["surrogate.low=-0.1 is outside"]),
        (["--objective.surrogate.high", "nan"], ["surrogate.high=nan is not a finite number"]),
        (["--objective.loss-kl.coef", "inf"], ["coef=inf is not a finite number"]),
        (["--mesh.data", "0"], ["mesh.data=0; take a positive number"]),
        (["--seed", "-1"], ["seed=-1 is outside"]),
    ],
)
def test_a_bad_option_ends_with_code_2_before_the_run(capsys, argv, messages):
    def never(config):
        raise AssertionError("the run was started")

    code, _, err = ended(capsys, argv, never)
    assert code == 2
    for message in messages:
        assert message in " ".join(err.split()), err


def raising(error):
    def run(config):
        raise error

    return run


def test_how_a_run_may_end(capsys):
    code, _, err = ended(capsys, [], raising(ConfigError("model/ is not a folder")))
    assert (code, err) == (2, "error: model/ is not a folder\n")
    code, _, err = ended(capsys, [], raising(Interrupted("stopped after step 3\nresume with: x")))
    assert (code, err) == (130, "stopped after step 3\nresume with: x\n")
    code, _, err = ended(capsys, [], raising(KeyboardInterrupt()))
    assert code == 130 and "same command" in err
    with pytest.raises(ZeroDivisionError):
        launch(CONFIG, raising(ZeroDivisionError()), [])


def test_compiled_programs_are_kept_unless_told_where(monkeypatch, capsys, tmp_path):
    before = jax.config.jax_compilation_cache_dir
    monkeypatch.setenv("HOME", str(tmp_path))
    try:
        launch(CONFIG, lambda c: c, [])
        assert jax.config.jax_compilation_cache_dir == before
        assert capsys.readouterr().out == ""
        monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
        launch(CONFIG, lambda c: c, [])
        folder = str(tmp_path / ".cache" / "rlhf_jax")
        assert jax.config.jax_compilation_cache_dir == folder
        out = capsys.readouterr().out
        assert folder in out and len(out.splitlines()) == 1
    finally:
        jax.config.update("jax_compilation_cache_dir", before)


def test_a_user_without_a_home_keeps_no_programs(monkeypatch, capsys):
    def no_home():
        raise RuntimeError("Could not determine home directory.")

    before = jax.config.jax_compilation_cache_dir
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    monkeypatch.setattr(Path, "home", no_home)
    assert launch(CONFIG, lambda c: c, []) == CONFIG
    assert jax.config.jax_compilation_cache_dir == before
    assert capsys.readouterr().out == ""


def test_neither_import_nor_parsing_starts_a_backend():
    script = (
        f"import {__name__} as here\n"
        "from jax._src import xla_bridge\n"
        "here.parse(here.CONFIG, ['--objective.surrogate.low', '0.1'])\n"
        "assert not xla_bridge.backends_are_initialized()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONPATH": ":".join(sys.path), "PATH": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_help_texts():
    assert field_help(Config, "seed") == "Of every draw."
    assert field_help(PolicyObjective, "ratio") == "(logp_BT, logp_old_BT, mask_BT) -> ratio_BT"
    assert argument_help(sums, "path") == argument_help(sums, "limit") == "where, and how long."
    assert argument_help(length, "inner") == "Of length."
