"""The tensors of a model folder by name, read slice by slice from one or several files."""

from __future__ import annotations

import glob
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from rlhf_jax.errors import ConfigError

ONE_FILE, INDEX_FILE = "model.safetensors", "model.safetensors.index.json"


@dataclass(frozen=True)
class Weights:
    """Open files of one folder.

    Attributes:
        files: file name -> open file.
        file_of: tensor name -> file name.
        absent: what the names in the files lack at their beginning.
    """

    folder: Path
    files: dict[str, Any]
    file_of: dict[str, str]
    absent: str = ""

    def named(self, prefix: str) -> Weights:
        """The names of a whole model, if these are of a trunk that was saved by itself."""
        if any(name.startswith(prefix) for name in self.file_of):
            return self
        file_of = {prefix + name: file for name, file in self.file_of.items()}
        return replace(self, file_of=file_of, absent=prefix)

    def where(self, name: str) -> str:
        """A tensor's file and name, for errors."""
        return f"{self.folder / self.file_of[name]}: {name.removeprefix(self.absent)}"

    def view(self, name: str) -> Any:
        """A lazy view of one tensor: it reads what is indexed."""
        return self.files[self.file_of[name]].get_slice(name.removeprefix(self.absent))


@contextmanager
def open_weights(folder: Path) -> Iterator[Weights]:
    """Open model.safetensors, or the files that model.safetensors.index.json names.

    Raises:
        ConfigError: neither is there; a file is missing, cut short or lacks what is indexed in it.
    """
    with ExitStack() as stack:
        if (folder / ONE_FILE).exists():
            file = stack.enter_context(_open(folder / ONE_FILE, "it"))
            yield Weights(folder, {ONE_FILE: file}, dict.fromkeys(list(file.keys()), ONE_FILE))
            return
        if not (folder / INDEX_FILE).exists():
            raise ConfigError(
                f"{folder} holds neither {ONE_FILE} nor {INDEX_FILE}; only safetensors are read "
                "(save_pretrained of transformers writes them)"
            )
        file_of = read_json(folder / INDEX_FILE).get("weight_map")
        if not isinstance(file_of, dict):
            raise ConfigError(f"{folder / INDEX_FILE} has no weight_map")
        files, names = {}, {}
        for tensor, file in file_of.items():
            if file not in files:
                files[file] = stack.enter_context(_open(folder / file, tensor))
                names[file] = set(files[file].keys())
            if tensor not in names[file]:
                raise ConfigError(f"{folder / file} lacks {tensor}, which the index has in it")
        yield Weights(folder, files, file_of)


def _open(path: Path, tensor: str) -> Any:
    try:
        return safe_open(path, framework="numpy")
    except FileNotFoundError as error:
        raise ConfigError(f"{path} is missing; the index has {tensor} in it") from error
    except (SafetensorError, OSError) as error:
        raise ConfigError(f"{path} is cut short or corrupt: {error}") from error


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object from a file.

    Raises:
        ConfigError: the file is missing, or is not JSON, or not an object.
    """
    try:
        raw = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"{file} is missing") from error
    except (ValueError, OSError) as error:
        raise ConfigError(f"{file} cannot be read as JSON: {error}") from error
    if not isinstance(raw, dict):
        raise ConfigError(f"{file} is not a JSON object")
    return raw


def write_json(file: Path, value: dict[str, Any]) -> None:
    file.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


@contextmanager
def replaced(folder: Path) -> Iterator[Path]:
    """A new folder to write into, which takes the place of `folder` if nothing is raised.

    What killed processes have left of such folders is removed, also by this process's own number:
    in containers it is the same every time.
    """
    new, old = (folder.parent / f".{folder.name}.{kind}-{os.getpid()}" for kind in ("new", "old"))
    for leftover in (new, old):
        shutil.rmtree(leftover, ignore_errors=True)
    try:
        new.mkdir(parents=True)
        yield new
        if folder.exists():
            folder.rename(old)
        new.rename(folder)
        for kind in ("new", "old"):
            for leftover in folder.parent.glob(f".{glob.escape(folder.name)}.{kind}-*"):
                shutil.rmtree(leftover, ignore_errors=True)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def fingerprint(folder: str | Path) -> str:
    """A digest of a model folder: names and sizes of its files, their first and last MiB.

    Reading both ends of each file tells trained weights from others without reading a pod's worth
    of them.
    """
    digest = hashlib.sha256()
    for path in sorted(Path(folder).glob("*")):
        if path.suffix not in (".json", ".safetensors"):
            continue
        size = path.stat().st_size
        digest.update(f"{path.name} {size} ".encode())
        with open(path, "rb") as file:
            digest.update(file.read(2**20))
            file.seek(max(0, size - 2**20))
            digest.update(file.read())
    return digest.hexdigest()[:16]
