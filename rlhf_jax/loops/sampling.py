"""Draw completions of a model folder, score them, and keep both as rows for other runs.

What rejection sampling, reward models and preference losses learn from; `data.comparisons` turns
the rows into demonstrations, pairs, labels or rankings.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from rlhf_jax.bind import Bound
from rlhf_jax.data.comparisons import ROWS_FILE, SAMPLED, read_samples
from rlhf_jax.data.lengths import OVER_LONG
from rlhf_jax.data.order import batches_in_order
from rlhf_jax.data.prompts import PromptSet, both_parts
from rlhf_jax.data.rows import check_rows
from rlhf_jax.errors import ConfigError, check_choice, check_divides, check_number
from rlhf_jax.loops.collect import judge
from rlhf_jax.loops.common import DTYPES, StopRequest, step_key
from rlhf_jax.loops.functions import prompt_sampler
from rlhf_jax.loops.run import check_vocabulary, load_policy, open_path
from rlhf_jax.loops.start import with_files
from rlhf_jax.models.convert import read_config
from rlhf_jax.models.tokenizer import Tokenizer
from rlhf_jax.models.weights import fingerprint
from rlhf_jax.parallel.mesh import MeshConfig, make_mesh
from rlhf_jax.parallel.multihost import barrier, is_first_process, to_host
from rlhf_jax.parallel.sharding import row_shards
from rlhf_jax.parts import check_kinds
from rlhf_jax.report.files import write_atomically
from rlhf_jax.report.progress import Progress
from rlhf_jax.report.resolved import resolved
from rlhf_jax.report.run_folder import RunFolder
from rlhf_jax.rewards.compose import check_rewards
from rlhf_jax.rollout.sampler import SamplingConfig
from rlhf_jax.types import Prompts, Rollout

# Options that change no row (but to rounding): a prompt draws the same samples in any batch.
_MAY_CHANGE = {"out", "restart", "mesh", "num_prompts"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleConfig:
    """Everything that drawn rows depend on."""

    out: str
    """The folder: rows.jsonl, config, metrics, result. The same command goes on where it stopped,
    and draws nothing where all is drawn."""
    seed: int = 0
    """Of the draws."""
    restart: bool = False
    """Move what the folder holds aside (to FOLDER.1, FOLDER.2, …) and begin anew."""
    model: str
    """Folder of the Hugging Face model that answers."""
    prompts: Bound
    """Returns (training rows, held-out rows); a row is a dict with a "prompt"."""
    part: str = "train"
    """Which of the two are answered: train or held_out."""
    max_prompts: int | None = None
    """Answer only the first so many. None: all."""
    rewards: tuple[Bound, ...]
    """Reward functions: (prompts, completions, rows) -> a number or None for each."""
    reward_weights: tuple[float, ...] = ()
    """One weight a reward function; empty: all 1."""
    reward_errors: str = "raise"
    """A row that a reward function fails on: raise ends the run, skip leaves the row unscored and
    counts it."""
    sampling: SamplingConfig
    """How completions are drawn: num_samples of them for each prompt."""
    num_prompts: int
    """Prompts of one batch; it changes memory and speed, not the rows."""
    over_long: str = "error"
    """What becomes of a prompt longer than sampling.max_prompt_tokens: error, drop, left or right
    (cut there)."""
    mesh: MeshConfig = field(default_factory=MeshConfig)
    """Device counts along the axes data, fsdp and tensor."""
    compute_dtype: str = "float32"
    """float32 or bfloat16."""

    def __post_init__(self):
        check_kinds(self)
        check_number("seed", self.seed, low=0, high=2**31 - 1)
        check_number("num_prompts", self.num_prompts, low=1)
        if self.max_prompts is not None:
            check_number("max_prompts", self.max_prompts, low=1)
        check_choice("part", self.part, ("train", "held_out"))
        check_choice("over_long", self.over_long, OVER_LONG)
        check_choice("compute_dtype", self.compute_dtype, DTYPES)
        check_rewards(self.rewards, self.reward_weights, self.reward_errors)

    @property
    def weights(self) -> tuple[float, ...]:
        """One factor a reward function."""
        return self.reward_weights or (1.0,) * len(self.rewards)

    @property
    def remat(self) -> str:
        """Nothing is differentiated, so nothing is recomputed."""
        return "none"


def draw_rows(cfg: SampleConfig) -> list[dict[str, Any]]:
    """The rows of `run`, drawn now or found in its folder."""
    run(cfg)
    return read_samples(cfg.out)


def run(cfg: SampleConfig) -> dict[str, Any]:
    """Draw and score as `cfg` says; returns what result.json holds.

    Each row of rows.jsonl is a prompt's record with
        prompt_ids: the ids that were answered (cut, if `over_long` cuts)
        completions, completion_ids: G texts, and the ids exactly as drawn, the end token included
            where it was drawn; these are what is trained on, see `encode.encode_row`
        scores: weighted total of each, None where no reward function applies
        ended: whether each was ended by the policy, not by the length limit.

    Rows depend on config, model and prompts alone, not on how they are batched. They are appended
    batch by batch; a run that was stopped or killed goes on after its last whole row.

    Raises:
        ConfigError: whatever a user can mend; also a folder that holds other samples.
        Interrupted: asked to stop; what is drawn is kept.
    """
    tokenizer, prompts, identity = read_inputs(cfg)
    path = open_path(cfg)
    with RunFolder(path, writes=is_first_process()) as folder, StopRequest() as stop:
        record = {"identity": identity, **resolved(cfg)}
        done = _rows_done(folder, path / ROWS_FILE, record)
        result = folder.result()
        if result is not None and done == len(prompts):
            print(f"{cfg.out} holds its {done} rows already; --restart draws anew")
            return result
        mesh = make_mesh(cfg.mesh)
        check_divides("num_prompts", cfg.num_prompts, "mesh data*fsdp", row_shards(mesh))
        folder.cut_back(done if done else -1)
        folder.write_config(record)
        with jax.set_mesh(mesh):
            _draw(cfg, tokenizer, prompts, done, mesh, folder, stop)
        result = _result(folder, read_samples(path), identity, cfg.seed)
        folder.write_result(result)
        print(f"{cfg.out}: {_told(result)}")
    return result


def read_inputs(cfg: SampleConfig) -> tuple[Tokenizer, PromptSet, str]:
    """Tokenizer, the prompts to answer, and a fingerprint of them and the model.

    Raises:
        ConfigError: model folder, tokenizer, prompts or a length; it names what and where.
    """
    tokenizer = Tokenizer.from_folder(cfg.model)
    check_vocabulary(tokenizer, read_config(cfg.model), cfg.model)
    rows = both_parts(cfg.prompts())[("train", "held_out").index(cfg.part)]
    check_rows(rows, "prompts")
    rows = rows[: cfg.max_prompts]
    for number, row in enumerate(rows):
        taken = sorted(SAMPLED & row.keys())
        if taken:
            raise ConfigError(f"prompts: row {number} has {taken} already: rename it")
    prompts = PromptSet.from_rows(
        rows,
        tokenizer,
        max_prompt_tokens=cfg.sampling.max_prompt_tokens,
        over_long=cfg.over_long,
    )
    identity = f"{fingerprint(cfg.model)}-{prompts.fingerprint}"
    return tokenizer, prompts, with_files(identity, cfg.rewards)


def _rows_done(folder: RunFolder, file: Path, record: dict[str, Any]) -> int:
    """How many whole rows the folder holds; a row torn by a crash is cut off.

    Raises:
        ConfigError: they are rows of another config, model or data.
    """
    if not file.exists():
        if folder.result() is not None or folder.checkpoints.exists():
            raise ConfigError(
                f"{folder.path} holds a run, and no samples; name a new --out, or pass --restart "
                "to move it aside"
            )
        return 0
    *lines, torn = file.read_text(encoding="utf-8").split("\n")
    old = folder.config() or {}
    names = sorted(old.keys() | record.keys())
    changed = [n for n in names if n not in _MAY_CHANGE and old.get(n) != record.get(n)]
    if lines and changed:
        changed = ["model or data" if name == "identity" else name for name in changed]
        raise ConfigError(
            f"{folder.path} holds samples of another {', '.join(changed)}; "
            "name a new --out, or pass --restart to move them aside"
        )
    if torn and folder.writes:
        write_atomically(file, "".join(line + "\n" for line in lines))
    barrier("rows counted")
    return len(lines)


def _draw(
    cfg: SampleConfig,
    tokenizer: Tokenizer,
    prompts: PromptSet,
    done: int,
    mesh: Mesh,
    folder: RunFolder,
    stop: StopRequest,
) -> None:
    """Append the rows from the `done`-th on."""
    model, params = load_policy(cfg.model, cfg, mesh)
    ids = dict(end_ids=tokenizer.end_ids, pad_id=tokenizer.pad_id)
    sample = prompt_sampler(model, cfg.sampling, **ids, mesh=mesh)
    key = step_key(cfg.seed, 0, "sample")
    first, total = done, len(prompts)
    rest = batches_in_order(total - first, cfg.num_prompts, lambda i: prompts.take(i + first))
    with Progress("sample", total=total, start=done, every=1) as progress:
        for batch, weight_P in rest:
            began = time.monotonic()
            rollout = sample(params, batch, key)
            rows = _rows(cfg, tokenizer, batch, rollout)[: int(weight_P.sum())]
            if folder.writes:
                _append(folder.path / ROWS_FILE, rows)
            done += len(rows)
            numbers = _numbers(rows) | {"seconds": time.monotonic() - began}
            folder.log(done, numbers)
            progress.update(done, {name: numbers.get(name) for name in ("score", "length")})
            if stop.requested and done < total:
                stop.leave(cfg.out, done)


def _rows(cfg, tokenizer: Tokenizer, prompts: Prompts, rollout: Rollout) -> list[dict[str, Any]]:
    judged = judge(cfg, tokenizer, prompts, rollout)
    tokens_BT, mask_BT, truncated_B = to_host(
        (rollout.tokens_BT, rollout.mask_BT, rollout.truncated_B)
    )
    scores = [
        float(score_C.sum()) if valid_C.any() else None
        for score_C, valid_C in zip(judged.score_BC, judged.valid_BC, strict=True)
    ]
    rows, num_samples = [], cfg.sampling.num_samples
    for p, row in enumerate(prompts.rows):
        own = slice(p * num_samples, (p + 1) * num_samples)
        ids = [t[m].tolist() for t, m in zip(tokens_BT[own], mask_BT[own], strict=True)]
        rows.append(
            {
                **row,
                "prompt_ids": prompts.tokens_PL[p][prompts.attend_PL[p]].tolist(),
                "completions": judged.completions[own],
                "completion_ids": ids,
                "scores": scores[own],
                "ended": (~truncated_B[own]).tolist(),
            }
        )
    return rows


def _append(file: Path, rows: Sequence[dict[str, Any]]) -> None:
    with open(file, "a", encoding="utf-8") as out:
        out.write("".join(json.dumps(row) + "\n" for row in rows))
        out.flush()
        os.fsync(out.fileno())


def _numbers(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Mean score (where one applies), length in tokens and share ended; tokens in all."""
    scores = [score for row in rows for score in row["scores"] if score is not None]
    lengths = [len(ids) for row in rows for ids in row["completion_ids"]]
    numbers = {
        "length": float(np.mean(lengths)),
        "ended": float(np.mean([ended for row in rows for ended in row["ended"]])),
        "tokens": float(sum(lengths)),
    }
    return {"score": float(np.mean(scores)), **numbers} if scores else numbers


def _result(folder: RunFolder, rows, identity: str, seed: int) -> dict[str, Any]:
    seconds = sum(line["seconds"] for line in folder.metrics())
    numbers = _numbers(rows)
    return {
        **numbers,
        "tokens": int(numbers["tokens"]),
        "prompts": len(rows),
        "completions": sum(len(row["completions"]) for row in rows),
        "seed": seed,
        "identity": identity,
        "seconds": round(seconds, 1),
    }


def _told(result: dict[str, Any]) -> str:
    score = f"mean score {result['score']:.4g}, " if "score" in result else ""
    return (
        f"{result['completions']} completions of {result['prompts']} prompts, {score}"
        f"{result['length']:.1f} tokens each, {result['ended']:.0%} ended, "
        f"{result['seconds']} s"
    )
