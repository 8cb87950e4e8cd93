"""tensorflow-datasets without TensorFlow: local records prepared once as array_record, and any
registered dataset; both are read by `as_data_source`.

A prepared file is found again by its content: the builder's config is named after the shape and a
digest of the file's bytes, so a changed file is prepared anew beside the old one.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlhf_jax.data.files import BadRow, Records
from rlhf_jax.errors import ConfigError

Row = dict[str, Any]
READER = "1"  # raise it when the same bytes are read as other records
REST = "other_fields"
SPLIT = "train"


def digest_of(path: Path, *options: Any) -> str:
    """Sixteen characters that change with any byte of a file or folder, or with an option."""
    digest = hashlib.sha256(json.dumps([READER, path.name, *options]).encode())
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    for file in files:
        if file.is_file():
            with file.open("rb") as opened:
                digest.update(hashlib.file_digest(opened, "sha256").digest())
    return digest.hexdigest()[:16]


def make_builder(cache: str | Path, shape: str, digest: str, records: Records | None = None):
    """The tensorflow-datasets builder of one file's records; of all their fields.

    Texts under the same field in every record are Text features of that name; what else a record
    holds is JSON under `other_fields`, with the line it comes from. Records that were bad are kept
    in the metadata: who reads the cache is told of them too.

    Args:
        cache: folder of prepared data.
        shape: of the records; part of the name.
        digest: of the content; the rest of the name.
        records: what to prepare; None: to read what is prepared.
    """
    import tensorflow_datasets as tfds

    name, rows = f"{shape}-{digest}", records.rows if records else []
    texts = sorted(k for k in (rows[0] if rows else ()) if _is_text_everywhere(rows, k))

    with tfds.core.registered.skip_registration():

        class Rows(tfds.core.GeneratorBasedBuilder):
            VERSION = tfds.core.Version("1.0.0")
            BUILDER_CONFIGS = [tfds.core.BuilderConfig(name=name, version="1.0.0")]  # noqa: RUF012
            pkg_dir_path = Path(__file__).parent

            def _info(self):
                features = {k: tfds.features.Text() for k in [*texts, REST]}
                noted = records.bad if records else []
                bad = [[row.line, row.why] for row in noted]
                return tfds.core.DatasetInfo(
                    builder=self,
                    description=f"Records of the shape {shape}.",
                    features=tfds.features.FeaturesDict(features),
                    disable_shuffling=True,
                    metadata=tfds.core.MetadataDict(bad=bad),
                )

            def _split_generators(self, dl_manager):
                return {SPLIT: self._generate_examples()}

            def _generate_examples(self):
                for number, (line, row) in enumerate(zip(records.lines, rows, strict=True)):
                    rest = {k: v for k, v in row.items() if k not in texts}
                    rest = json.dumps([line, list(row), rest], ensure_ascii=False)
                    yield number, {**{k: row[k] for k in texts}, REST: rest}

    return Rows(data_dir=str(cache), config=name, file_format="array_record")


def prepare(cache: str | Path, shape: str, digest: str, records: Records) -> None:
    """Write records into the cache.

    Raises:
        ConfigError: the cache cannot be written.
    """
    import tensorflow_datasets as tfds

    tfds.disable_progress_bar()
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # it announces itself at length
            make_builder(cache, shape, digest, records).download_and_prepare()
    except OSError as error:
        raise ConfigError(f"{cache}: cannot be written: {error.strerror or error}") from None


def read_prepared(cache: str | Path, shape: str, digest: str, path: Path) -> Records | None:
    """What was prepared of this content, or None.

    Args:
        path: of the file, for messages.
    """
    folder = Path(cache) / "rows" / f"{shape}-{digest}" / "1.0.0"
    if not (folder / "dataset_info.json").is_file():
        return None
    import tensorflow_datasets as tfds

    builder = tfds.builder_from_directory(folder)
    rows, lines = [], []
    for example in builder.as_data_source(split=SPLIT):
        line, names, rest = json.loads(example.pop(REST))
        texts = {name: _plain(value) for name, value in example.items()}
        rows.append({name: texts[name] if name in texts else rest[name] for name in names})
        lines.append(line)
    bad = [BadRow(*noted) for noted in builder.info.metadata["bad"]]
    return Records(path, rows, lines, bad)


def registered_rows(name: str, split: str, data_dir: str | None) -> list[Row]:
    """Records of a registered dataset, or of the folder of a prepared one.

    Raises:
        ConfigError: no such dataset or split, or it could not be had (no network, say).
    """
    import tensorflow_datasets as tfds

    tfds.disable_progress_bar()
    try:
        if (Path(name) / "dataset_info.json").is_file():
            builder = tfds.builder_from_directory(name)
        else:
            builder = tfds.builder(name, data_dir=data_dir, file_format="array_record")
            with contextlib.redirect_stdout(io.StringIO()):
                builder.download_and_prepare()
        return [_plain(example) for example in builder.as_data_source(split=split)]
    except Exception as error:  # its downloaders and registries raise a dozen unrelated kinds
        first = str(error).strip().split("\n")[0]
        raise ConfigError(f"dataset {name!r}, split {split!r}: {first}") from error


def _is_text_everywhere(rows: Sequence[Row], name: str) -> bool:
    return name.isidentifier() and name != REST and all(type(row.get(name)) is str for row in rows)


def _plain(value: Any) -> Any:
    """Python's own types: texts for bytes, lists for arrays, a list of records for columns."""
    if isinstance(value, bytes):
        return value.decode("utf-8")
    if isinstance(value, dict):
        found = {name: _plain(inner) for name, inner in value.items()}
        if {"role", "content"} <= set(found) and all(isinstance(v, list) for v in found.values()):
            return [
                dict(zip(found, cells, strict=True)) for cells in zip(*found.values(), strict=True)
            ]
        return found
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    return _plain(value.tolist()) if hasattr(value, "tolist") else value
