"""An opened run: its folder, its checkpoints, what it has done so far, and its end."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

from rlhf_jax.data.comparisons import ROWS_FILE
from rlhf_jax.errors import ConfigError
from rlhf_jax.loops.collect import Judged
from rlhf_jax.loops.common import DTYPES, RunConfig, StopRequest
from rlhf_jax.models.config import DecoderConfig
from rlhf_jax.models.convert import load_pretrained, read_config
from rlhf_jax.models.tokenizer import Tokenizer
from rlhf_jax.models.transformer import Model
from rlhf_jax.parallel.multihost import is_first_process, to_host
from rlhf_jax.parallel.sharding import padded_vocab, spec_for
from rlhf_jax.report.curves import ONLINE_PANELS, Panel, draw_curves
from rlhf_jax.report.page import report_finished
from rlhf_jax.report.progress import Progress
from rlhf_jax.report.resolved import resolved
from rlhf_jax.report.run_folder import RunFolder, check_unused
from rlhf_jax.train.checkpoint import Checkpointer
from rlhf_jax.train.metrics import bad_rows, memory_used, update_numbers
from rlhf_jax.train.state import TrainState
from rlhf_jax.types import replace

# Shown beside the progress bar -> name in the metrics.
_LIVE = {
    "score": "score",
    "loss": "loss",
    "accuracy": "accuracy",
    "KL": "kl_response",
    "length": "length",
    "entropy": "entropy",
}
FILES = "reward:"  # begins the parts of an identity that are of what reward functions read
_OF_SOME_ROWS = ("length_better", "length_worse")
# Options that may change between two commands that continue one run.
_MAY_CHANGE = {
    *("out", "restart", "num_steps", "log_every", "checkpoint", "on_nonfinite"),
    # another machine, or another way through the same arithmetic: the same numbers to rounding
    *("mesh", "micro_rows", "remat", "share_prompts"),
}


def load_policy(folder: str, cfg: RunConfig, mesh: Mesh) -> tuple[Model, dict[str, Any]]:
    """The decoder and parameters of a model folder, each tensor read straight into its shards."""

    def sharding(path, struct):
        return NamedSharding(mesh, spec_for("/".join(path), struct.shape, mesh))

    tensor = mesh.shape["tensor"]
    vocab = padded_vocab(read_config(folder).vocab_size, tensor)
    config, params = load_pretrained(folder, sharding=sharding, vocab_padded=vocab)
    return Model(config, DTYPES[cfg.compute_dtype], cfg.remat), params


def check_vocabulary(tokenizer: Tokenizer, config: DecoderConfig, folder: str) -> None:
    """Refuse a tokenizer whose ids the model has no rows for."""
    if tokenizer.vocab_size > config.vocab_size:
        raise ConfigError(
            f"{folder}: the tokenizer has {tokenizer.vocab_size} ids, the model "
            f"{config.vocab_size} rows; use the tokenizer that the model was trained with"
        )


def open_path(cfg, *, for_several: bool = False) -> Path:
    """The folder of `cfg.out`, moved aside if the run is to begin anew.

    Args:
        cfg: has `out` and `restart`.
        for_several: it holds the folders of several runs and a result of its own.

    Raises:
        ConfigError: it is not named; it is the folder of one run, whose result would be
            overwritten; or what `begin_anew` raises.
    """
    if not str(cfg.out):
        raise ConfigError("out is empty: name the run's folder")
    path = Path(cfg.out).resolve()
    if cfg.restart:
        begin_anew(path)
    if for_several and (path / "config.json").exists():
        raise ConfigError(f"{path} is the folder of one run; name another --out, for several")
    return path


def begin_anew(path: Path) -> None:
    """Rename a folder to the first free of FOLDER.1, FOLDER.2, …: nothing is deleted.

    Raises:
        ConfigError: another process is writing there, or this one works in it or below.
    """
    path = path.resolve()
    if not path.exists() or not is_first_process():
        return
    if path in (Path.cwd(), *Path.cwd().parents):
        raise ConfigError(f"--restart would move {path}, where you are; name another --out")
    check_unused(path)  # its process would go on by the names of files, in the new folder
    number = 1
    while path.with_name(f"{path.name}.{number}").exists():
        number += 1
    path.rename(path.with_name(f"{path.name}.{number}"))


def _without_files(identity: str) -> list[str]:
    return [part for part in identity.split("-") if not part.startswith(FILES)]


class Due(NamedTuple):
    """What follows a step: held-out rows measured, a checkpoint saved, the run left as asked."""

    measure: bool
    save: bool
    leave: bool


class Run:
    """The folder of one run, opened to begin or to go on.

    `host` is the part of the run's state that is not arrays: data position, tokens and seconds so
    far, the first evaluation. It is saved with every checkpoint.

    Args:
        cfg: the options.
        panels: of the curves.
        counts: names of the loop's token counters in `host`, begun at 0; the rate is of the first.

    Raises:
        ConfigError: the folder holds checkpoints of a run with another config.
    """

    def __init__(
        self,
        cfg: RunConfig,
        *,
        panels: Sequence[Panel] = ONLINE_PANELS,
        counts: Sequence[str] = ("tokens",),
    ):
        path = open_path(cfg)
        self.cfg, self.panels, self.counts = cfg, panels, counts
        self.folder = RunFolder(path, writes=is_first_process())
        self.checkpoints = Checkpointer(self.folder.checkpoints, cfg.checkpoint)
        self._waiting: tuple | None = None  # a step that is not reported yet
        self.host: dict[str, Any] = {"position": 0, **dict.fromkeys(counts, 0), "seconds": 0.0}
        try:
            self._result = self.folder.result()
            if (path / ROWS_FILE).exists():
                raise ConfigError(
                    f"{path} holds samples, and no run; name a new --out, or pass --restart to "
                    "move them aside"
                )
            # with neither there is nothing to go on from: a mended option may begin anew
            if self.checkpoints.steps() or self._result:
                self._refuse_another_run(self.folder.config() or {}, resolved(cfg))
        except ConfigError:
            self.folder.close()
            raise

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *exc) -> None:
        self.folder.close()

    def _refuse_another_run(self, old: dict, new: dict) -> None:
        may_change = _MAY_CHANGE
        if self.cfg.optim.schedule != "constant":  # where a decay ends would move under way
            may_change = may_change - {"num_steps"}
        names = sorted(old.keys() | new.keys())
        changed = [n for n in names if n not in may_change and old.get(n) != new.get(n)]
        if changed:
            raise ConfigError(
                f"{self.folder.path} holds a run with another {', '.join(changed)}; "
                "name a new --out, or pass --restart to move it aside"
            )

    def finished(self, identity: str) -> dict[str, Any] | None:
        """The result of a run that has already made all its steps, else None.

        Args:
            identity: fingerprint of model and data; a result of others is refused.
        """
        result = self._result
        if result is None or result.get("steps", -1) < self.cfg.num_steps:
            return None
        self._refuse_other_inputs(result.get("identity"), identity)
        print(f"{self.cfg.out} is finished ({result['steps']} steps); --restart begins anew")
        return result

    def _refuse_other_inputs(self, old: str | None, new: str) -> None:
        if old != new:
            what = "model or the data"
            if _without_files(old or "") == _without_files(new):
                what = "model (or another file) that a reward function reads"
            raise ConfigError(
                f"the {what} of {self.folder.path} has changed since it was begun; "
                "name a new --out, or pass --restart to move it aside"
            )

    def restore(self, state: TrainState, *, identity: str) -> TrainState:
        """The newest whole checkpoint, or `state` where there is none; logs are cut back to it.

        Args:
            state: of step 0.
            identity: fingerprint of model and data; a position in others means nothing.

        Raises:
            ConfigError: the checkpoint was made with others, or has more steps than asked for.
        """
        # the base is not saved: `identity` holds its fingerprint
        found = self.checkpoints.restore_latest(replace(state, base=None))
        if found is not None:
            state, self.host = replace(found[0], base=state.base), found[1]
            self._refuse_other_inputs(self.host["identity"], identity)
            if int(state.step) > self.cfg.num_steps:
                raise ConfigError(
                    f"{self.folder.path} has made {int(state.step)} steps already, more than "
                    f"num_steps={self.cfg.num_steps}"
                )
        self.host["identity"] = identity
        self.folder.cut_back(int(state.step) if found else -1)
        self.folder.write_config(self.cfg)
        return state

    def save(self, step: int, state: TrainState) -> None:
        self.host["updates"] = int(to_host(state.updates))
        self.checkpoints.save(step, replace(state, base=None), self.host)

    def due(self, step: int, stop: StopRequest, every: int | None) -> Due:
        """What follows `step` finished steps: all of it the last one.

        Args:
            step: finished steps.
            stop: a run that is asked to stop saves first.
            every: steps between two measurements of held-out rows; None: none between.
        """
        last = step == self.cfg.num_steps
        measure = last or (every is not None and step % every == 0)
        save = last or stop.requested or self.checkpoints.due(step)
        return Due(measure, save, leave=stop.requested and not last)

    def report(
        self,
        progress: Progress,
        step: int,
        updates: Sequence[dict],
        numbers: dict[str, Any],
        judged: Judged | None = None,
        *,
        began: float,
        due: Due,
    ) -> None:
        """Log and show the step before this one, while the device works on this one.

        This one is waited for and reported too where something is due, so that its time is its own.

        Args:
            step: finished steps, this one included.
            updates: metrics of the step's optimizer updates, still on the device.
            numbers: what else is known of the step.
            judged: its completions; a few are kept every `cfg.samples_every` steps.
            began: `time.monotonic()` then.
            due: what follows the step.

        Raises:
            FloatingPointError: as `_report`.
        """
        self._report_waiting(progress)
        if due.measure or due.save:
            jax.block_until_ready(updates)
        seconds = time.monotonic() - began
        self.host["seconds"] += seconds
        self._waiting = (step, updates, {**numbers, "seconds": seconds}, judged)
        if due.measure or due.save:
            self._report_waiting(progress)

    def _report_waiting(self, progress: Progress) -> None:
        if self._waiting is not None:
            waiting, self._waiting = self._waiting, None
            self._report(progress, *waiting)

    def _report(
        self,
        progress: Progress,
        step: int,
        updates: Sequence[dict],
        numbers: dict[str, Any],
        judged: Judged | None,
    ) -> None:
        """Log and show one finished step.

        Raises:
            FloatingPointError: an update was not finite and `on_nonfinite` is "stop"; it names
                the rows. That update was not applied.
        """
        cfg = self.cfg
        numbers = {name: float(value) for name, value in to_host(numbers).items()}
        for name in _OF_SOME_ROWS:
            if np.isnan(numbers.get(name, 0.0)):  # there were no such rows
                del numbers[name]
        numbers |= update_numbers(updates) | memory_used()
        if step % cfg.log_every == 0 or step == cfg.num_steps:
            self.folder.log(step, numbers)
        progress.update(step, {name: numbers.get(key) for name, key in _LIVE.items()})
        if judged is not None and step % cfg.samples_every == 0:
            rows = np.linspace(0, len(judged.prompts) - 1, 4).astype(int)
            records = judged.take(np.unique(rows)).records(cfg.rewards, cfg.watch)
            self.folder.sample(step, records)
        for number, rows in bad_rows(updates).items():
            where = f"rows {rows}" if rows else "no single row, a sum overflowed"
            message = f"step {step}, update {number}: loss or gradient is not finite ({where})"
            if cfg.on_nonfinite == "stop":
                raise FloatingPointError(f"{message}; the update was not applied")
            warnings.warn(f"{message}; skipped", stacklevel=2)

    def finish(self, export: Callable[[Path], None]) -> dict[str, Any]:
        """Export the model, draw the curves, write result.json and the report; return the result.

        `steps` are steps of the loop (an online loop's rollouts), `updates` applied optimizer
        updates.

        Args:
            export: writes what was trained as a Hugging Face folder.
        """
        folder, host = self.folder, self.host
        export(folder.policy)
        result = {
            **{name: host[name] for name in ("before", "after") if name in host},
            "steps": self.cfg.num_steps,
            "updates": host["updates"],
            "seed": self.cfg.seed,
            "identity": host["identity"],
            "seconds": round(host["seconds"], 1),
            **{name: host[name] for name in self.counts},
            "tokens_per_second": round(host[self.counts[0]] / max(host["seconds"], 1e-9), 1),
        }
        if folder.writes:
            draw_curves(folder.metrics(), folder.curves, title=folder.path.name, panels=self.panels)
        folder.write_result(result)
        if folder.writes:
            report_finished(folder.path)
        files = sorted(path.name for path in folder.path.glob("[!.]*"))
        print(f"written to {folder.path}: {', '.join(files)}")
        return result
