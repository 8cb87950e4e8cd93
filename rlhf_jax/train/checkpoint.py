"""Atomic checkpoints of the whole train state, checked on restore. The only file on orbax.

    folder/step_00000040/
        state/         every array of the TrainState (orbax)
        host.json      step, layout of the arrays, and the loop's own record (seed, position, …)
        digests.json   sha256 of every file above

A checkpoint is written under a hidden name and renamed once it is complete and its digests are on
disk, so a kill at any moment leaves the previous one whole. Orbax restores a flipped bit
silently; the digests do not. `folder` must be on a file system where rename is atomic (a local
disk, NFS; on several hosts a shared one).
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
from jax.sharding import SingleDeviceSharding
from orbax.checkpoint import v1 as ocp

from rlhf_jax.errors import ConfigError, check_number
from rlhf_jax.parallel.multihost import barrier, is_first_process
from rlhf_jax.parallel.sharding import path_name
from rlhf_jax.parts import check_kinds

_DIGESTS, _HOST, _STATE = "digests.json", "host.json", "state"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointConfig:
    """How often a run is saved and how many checkpoints stay."""

    every: int = 50
    """Steps of the loop between two checkpoints."""
    keep: int = 2
    """Newest checkpoints that stay; with 1, a damaged one leaves nothing to fall back on."""

    def __post_init__(self):
        check_kinds(self, "checkpoint.")
        check_number("checkpoint.every", self.every, low=1)
        check_number("checkpoint.keep", self.keep, low=1)


class Checkpointer:
    """Saves and restores (state, host record) pairs in one folder."""

    def __init__(self, folder: str | os.PathLike, cfg: CheckpointConfig):
        self.folder = Path(folder).absolute()
        self.cfg = cfg

    def due(self, step: int) -> bool:
        """True when `step` finished steps are a multiple of `cfg.every`."""
        return step > 0 and step % self.cfg.every == 0

    def steps(self) -> list[int]:
        """Steps with a complete checkpoint, oldest first (not yet verified)."""
        names = [p.name.removeprefix("step_") for p in self.folder.glob("step_*")]
        return sorted(int(name) for name in names if name.isdigit())

    def path(self, step: int) -> Path:
        return self.folder / f"step_{step:08d}"

    def save(self, step: int, state: Any, host: dict[str, Any]) -> Path:
        """Write one checkpoint and drop the ones beyond `cfg.keep`; returns its folder.

        Every process must call it. A checkpoint of the same step is replaced.

        Args:
            step: finished steps of the loop.
            state: any pytree of arrays; the whole TrainState.
            host: JSON values only; whatever the loop needs to go on (seed, data position, …).
        """
        final, temporary = self.path(step), self.folder / f".writing_{step:08d}"
        if is_first_process():
            self.folder.mkdir(parents=True, exist_ok=True)
            for leftover in (*self.folder.glob(".writing_*"), *self.folder.glob(".dropped_*")):
                shutil.rmtree(leftover)
        barrier(f"checkpoint {step} begins")
        arrays = _flatten(state)
        ocp.save(temporary / _STATE, arrays)
        if is_first_process():
            record = {"step": step, "layout": _layout(arrays), "host": host}
            (temporary / _HOST).write_text(json.dumps(record, indent=1))
            _write_digests(temporary)
            self._drop([final] if final.exists() else [])
            os.rename(temporary, final)
            _sync(self.folder)
            self._drop([self.path(old) for old in self.steps()[: -self.cfg.keep]])
        barrier(f"checkpoint {step} ends")
        return final

    def restore_latest(self, like: Any) -> tuple[Any, dict[str, Any]] | None:
        """The newest checkpoint whose digests hold, or None where the folder has none.

        Args:
            like: the state, or its shapes (`abstract_state`); its shardings are those of the
                result, whatever mesh the checkpoint was written on.

        Returns:
            (state, host record), bit for bit what was saved.

        Raises:
            ConfigError: checkpoints are there and every one is damaged (beginning anew would
                overwrite the run's logs: move the folder away to do that), or the newest whole
                one holds other arrays than `like`.
        """
        steps = self.steps()
        for step in reversed(steps):
            path = self.path(step)
            damage = _find_damage(path)
            if damage is None:
                return self._read(path, like)
            warnings.warn(
                f"checkpoint {path} is damaged ({damage}); trying the one before it",
                stacklevel=2,
            )
        if steps:
            raise ConfigError(
                f"all {len(steps)} checkpoints in {self.folder} are damaged; move the folder "
                "away to begin anew"
            )
        return None

    def _read(self, path: Path, like: Any) -> tuple[Any, dict[str, Any]]:
        record = json.loads((path / _HOST).read_text())
        wanted = _flatten(like)
        _check_layout(path, record["layout"], _layout(wanted))
        here = SingleDeviceSharding(jax.local_devices()[0])
        abstract = {
            name: jax.ShapeDtypeStruct(
                x.shape, x.dtype, sharding=getattr(x, "sharding", None) or here
            )
            for name, x in wanted.items()
        }
        arrays = ocp.load(path / _STATE, abstract)
        state = jax.tree.unflatten(jax.tree.structure(like), [arrays[name] for name in wanted])
        return state, record["host"]

    def _drop(self, paths: list[Path]) -> None:
        """Hide, then delete: a kill in between leaves no half-deleted checkpoint in sight."""
        for path in paths:
            hidden = self.folder / f".dropped_{path.name}"
            os.rename(path, hidden)
            shutil.rmtree(hidden)


def _flatten(tree: Any) -> dict[str, Any]:
    """Path -> array. Flat, so that orbax sees a plain dict and no record type of ours."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {path_name(path).replace("/", "."): leaf for path, leaf in leaves}


def _layout(arrays: dict[str, Any]) -> dict[str, list]:
    return {name: [list(x.shape), str(x.dtype)] for name, x in arrays.items()}


def _check_layout(path: Path, saved: dict[str, list], wanted: dict[str, list]) -> None:
    for name in [*wanted, *saved]:
        if saved.get(name) != wanted.get(name):
            raise ConfigError(
                f"checkpoint {path} does not fit this run: {name} is {saved.get(name, 'absent')} "
                f"there and {wanted.get(name, 'absent')} here; restore with the configuration "
                "that wrote it, or choose another folder"
            )


def _write_digests(folder: Path) -> None:
    names = sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())
    files = {name: _sha256(folder / name) for name in names}
    record = {"files": files, "all": _sha256_text(json.dumps(files))}
    (folder / _DIGESTS).write_text(json.dumps(record, indent=1))
    for name in [*names, _DIGESTS]:
        _sync(folder / name)  # on the disk, not only in a cache, before the rename shows it


def _find_damage(path: Path) -> str | None:
    """What is wrong with a checkpoint, or None."""
    try:
        record = json.loads((path / _DIGESTS).read_text())
        if _sha256_text(json.dumps(record["files"])) != record["all"]:
            return f"{_DIGESTS} has changed"
        for name, digest in record["files"].items():
            if _sha256(path / name) != digest:
                return f"{name} has changed"
    except FileNotFoundError as error:
        return f"{Path(error.filename).relative_to(path)} is missing"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"{_DIGESTS} cannot be read: {error!r}"
    return None


def _sha256(file: Path) -> str:
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _sha256_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)
