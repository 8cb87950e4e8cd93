"""Every algorithm on stories, one after the other, and the table that compares them.

    python -m experiments.stories_table --model ../shared/models/stories260K/hf

Samples are drawn once and a reward model is trained once; then each row of `ROWS` runs in a process
of its own and is measured on the same 100 held-out openings, at temperature 1, 48 tokens each, by
VADER. What has finished is not run again; a row that fails is named at the end (exit code 1) and
stops only those that read it. The table is OUT/table.md. One to two hours on two CPU cores;
`--only grpo_stories dpo_stories` runs a few rows and what they read.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from experiments import grpo_stories
from experiments.launch import launch
from rlhf_jax.errors import ConfigError, check_choice, check_number
from rlhf_jax.loops.run import begin_anew
from rlhf_jax.report.files import read_object, write_atomically

SAMPLES, REWARD_MODEL = "{out}/sample_stories", "{out}/reward_stories/reward_model"
ONLINE = ("--prompts.path", "{text}")
ANSWERS = ("--answers.prompts.path", "{text}")
PREFERENCES = ("preferences", "held-out")


@dataclass(frozen=True)
class Row:
    """One experiment of the table.

    title: as the table names it
    module: of experiments; its run folder is OUT/MODULE
    options: of its command line, in which {out}, {text} and {model} are filled in
    needs: modules whose results it reads
    gold: which number of an evaluation is the VADER score; None: it trains no policy
    """

    title: str
    module: str
    options: tuple[str, ...] = ONLINE
    needs: tuple[str, ...] = ()
    gold: str | None = "score"


def sampled(title: str, module: str, *names: str) -> Row:
    """A row that learns from the samples, given to it under these options."""
    options = [text for name in names for text in (f"--{name}.samples", SAMPLES)]
    return Row(title, module, (*options, *ANSWERS), needs=("sample_stories",))


ROWS = (
    Row("sixteen samples a prompt", "sample_stories", gold=None),
    Row(
        "reward model",
        "reward_stories",
        ("--rankings.samples", SAMPLES, "--held-out.samples", SAMPLES),
        needs=("sample_stories",),
        gold=None,
    ),
    Row(
        "SFT on stories",
        "sft_stories",
        ("--demonstrations.path", "{text}", "--held-out.path", "{text}", *ANSWERS),
    ),
    sampled(
        "rejection sampling, best of 16", "rejection_sampling_stories", "demonstrations", "held-out"
    ),
    Row("PPO", "ppo_stories"),
    Row(
        "PPO, learned reward",
        "ppo_reward_model_stories",
        (*ONLINE, "--rewards.0.model", REWARD_MODEL, "--critic-from", REWARD_MODEL),
        needs=("reward_stories",),
        gold="watch/vader",
    ),
    Row("GRPO", "grpo_stories"),
    Row("GRPO, process rewards", "grpo_process_stories"),
    Row("Dr. GRPO", "dr_grpo_stories"),
    Row("DAPO", "dapo_stories"),
    Row("RLOO", "rloo_stories"),
    Row("REINFORCE++", "reinforce_pp_stories"),
    Row("REINFORCE++, group baseline", "reinforce_pp_baseline_stories"),
    Row("ReMax", "remax_stories"),
    Row("GSPO", "gspo_stories"),
    Row("CISPO", "cispo_stories"),
    Row("SAPO", "sapo_stories"),
    Row("GMPO", "gmpo_stories"),
    sampled("DPO", "dpo_stories", *PREFERENCES),
    sampled("IPO", "ipo_stories", *PREFERENCES),
    sampled("KTO", "kto_stories", *PREFERENCES),
    sampled("SimPO", "simpo_stories", *PREFERENCES),
    sampled("ORPO", "orpo_stories", *PREFERENCES),
    sampled("CPO", "cpo_stories", *PREFERENCES),
    Row("online DPO", "online_dpo_stories"),
    Row(
        "SPIN",
        "spin_stories",
        (
            *("--samples.prompts.path", "{text}", "--samples.prompts.model", "{model}"),
            *("--dpo.preferences.path", "{text}", "--dpo.preferences.model", "{model}"),
            *("--dpo.answers.prompts.path", "{text}"),
        ),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoriesTableConfig:
    """Which rows are run, and from what."""

    out: str = "runs/stories_table"
    """Holds a run folder and a log for each row, and the table."""
    seed: int = 0
    """Of every run."""
    only: tuple[str, ...] | None = None
    """Run these alone, and what they read. None: all."""
    restart: bool = False
    """Move what the folder holds aside (to FOLDER.1, FOLDER.2, …) and begin anew."""
    model: str = grpo_stories.CONFIG.model
    """Folder of the model that every run starts from."""
    text: str = grpo_stories.CONFIG.prompts.kw["path"]
    """The stories whose openings are continued."""

    def __post_init__(self):
        check_number("seed", self.seed, low=0, high=2**31 - 1)
        if self.only is not None and not self.only:
            raise ConfigError("only names no row; name one, or leave it out to run them all")
        for name in self.only or ():
            check_choice("only", name, [row.module for row in ROWS])


CONFIG = StoriesTableConfig()


def main(cfg: StoriesTableConfig) -> None:
    """Run what is missing, write the table, and say what failed.

    Raises:
        SystemExit: 1 if a row failed.
    """
    out = Path(cfg.out).resolve()
    if cfg.restart:
        begin_anew(out)
    out.mkdir(parents=True, exist_ok=True)
    done, failed, chosen = read_object(out / "table.json") or {}, [], with_needs(cfg.only)
    for number, row in enumerate(chosen, start=1):
        where = f"[{number}/{len(chosen)}] {row.module}"
        missing = [name for name in row.needs if name in failed]
        if missing:
            failed.append(row.module)
            print(f"{where}: not run, {', '.join(missing)} failed", flush=True)
            continue
        command = command_of(row, cfg, out)
        note = done.setdefault(row.module, {"command": command, "attempts": []})
        if note["command"] != command:
            raise ConfigError(
                f"{out}/{row.module} was begun with other options; name a new --out, or --restart"
            )
        if not finished(out / row.module, note):
            print(f"{where} ...", flush=True)
            attempt(command, out, row.module, done)
        if finished(out / row.module, note):
            print(f"{where}: {told(row, out)}, {seconds(note)}", flush=True)
        else:
            failed.append(row.module)
            log = (out / f"{row.module}.log").read_text(errors="replace").splitlines()
            how = ended(note["attempts"][-1]["exit"])
            print("\n".join([f"{where}: FAILED, {how}", *(f"    {line}" for line in log[-5:])]))
        write_atomically(out / "table.md", table(chosen, done, out))
    print((out / "table.md").read_text())
    if failed:
        print(f"failed: {', '.join(failed)}; see OUT/NAME.log in {out}", file=sys.stderr)
        raise SystemExit(1)


def with_needs(only: Sequence[str] | None) -> list[Row]:
    """The rows asked for and what they read, in the order of `ROWS`; None: all."""
    by_name = {row.module: row for row in ROWS}
    wanted = list(by_name if only is None else only)
    for name in wanted:  # grows while it is read
        wanted += [need for need in by_name[name].needs if need not in wanted]
    return [row for row in ROWS if row.module in wanted]


def command_of(row: Row, cfg: StoriesTableConfig, out: Path) -> list[str]:
    """What is run after `python -m`."""
    options = [text.format(out=out, text=cfg.text, model=cfg.model) for text in row.options]
    shared = ["--out", str(out / row.module), "--seed", str(cfg.seed), "--model", cfg.model]
    return [f"experiments.{row.module}", *shared, *options]


def attempt(command: Sequence[str], out: Path, name: str, done: dict[str, Any]) -> None:
    """Run a row in a process of its own, its output in NAME.log, and note how long it took.

    Raises:
        KeyboardInterrupt: it was asked to stop; what it has done is saved.
    """
    attempts = done[name]["attempts"]
    attempts.append({"seconds": None, "exit": None})  # stands if this process is killed meanwhile
    write_atomically(out / "table.json", json.dumps(done, indent=2) + "\n")
    began = time.monotonic()
    with open(out / f"{name}.log", "a", encoding="utf-8") as log:
        code, stopped = run_through([sys.executable, "-m", *command], log)
    attempts[-1] = {"seconds": round(time.monotonic() - began, 1), "exit": code}
    write_atomically(out / "table.json", json.dumps(done, indent=2) + "\n")
    if stopped or code == 130:
        raise KeyboardInterrupt


def run_through(command: Sequence[str], log: TextIO) -> tuple[int, bool]:
    """Run a command to its end: its exit code, and whether it was asked to stop meanwhile.

    Ctrl-C reaches it as well; SIGTERM, which this process alone is sent, is passed on. Either way
    it saves, then ends, and is waited for.
    """
    stopped, running = False, []

    def pass_on(number, frame):
        nonlocal stopped
        stopped = True
        for process in running:
            process.send_signal(number)

    before = signal.signal(signal.SIGTERM, pass_on)
    try:
        running.append(subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT))
        if stopped:  # while it was started
            running[0].terminate()
        while True:
            try:
                return running[0].wait(), stopped
            except KeyboardInterrupt:
                stopped = True
    finally:
        signal.signal(signal.SIGTERM, before)


def ended(code: int) -> str:
    """How a process that failed has ended, of its exit code."""
    if code >= 0:
        return f"exit code {code}"
    hint = " (is there too little memory?)" if code == -signal.SIGKILL else ""
    return f"killed by {signal.Signals(-code).name}{hint}"


def finished(folder: Path, note: dict[str, Any]) -> bool:
    """Its last attempt ended well and left a result."""
    ended_well = note["attempts"] and note["attempts"][-1]["exit"] == 0
    return bool(ended_well) and (folder / "result.json").exists()


def seconds(note: dict[str, Any]) -> str:
    """Wall time of the whole process (start, compilation, evaluations), of all its attempts."""
    known = [a["seconds"] for a in note["attempts"] if a["seconds"] is not None]
    return ("" if len(known) == len(note["attempts"]) else "> ") + f"{sum(known):.0f} s"


def tokens(result: dict[str, Any]) -> str:
    """Response tokens that the run drew, and trained on; – where it draws none of its own."""
    drawn, trained = result.get("tokens_drawn"), result.get("tokens_trained", result.get("tokens"))
    return f"{'–' if drawn is None else f'{drawn / 1000:.0f}'} / {trained / 1000:.0f}"


def told(row: Row, out: Path) -> str:
    """The headline of a finished row."""
    result = read_object(out / row.module / "result.json")
    if row.gold is not None:
        return f"gold {result['before'][row.gold]:.3f} -> {result['after'][row.gold]:.3f}"
    numbers = result.get("after", result)
    shown = {k: v for k, v in numbers.items() if isinstance(v, float) and k != "seconds"}
    return ", ".join(f"{name} {value:.4g}" for name, value in shown.items())


def table(rows: Sequence[Row], done: dict[str, Any], out: Path) -> str:
    """Markdown: the rows that train a policy, then what else there is to say."""
    lines, notes = [], []
    for row in rows:
        note = done.get(row.module)
        if note is None or not finished(out / row.module, note):
            notes.append(f"{row.title} (`{row.module}`): no result")
            continue
        if row.gold is None:
            notes.append(f"{row.title} (`{row.module}`): {told(row, out)}; {seconds(note)}")
            continue
        result = read_object(out / row.module / "result.json")
        before, after = result["before"], result["after"]
        if row.gold != "score":
            notes.append(
                f"{row.title} (`{row.module}`): the score it is trained on "
                f"{before['score']:.3g} → {after['score']:.3g}"
            )
        cells = [
            row.title,
            f"{before[row.gold]:.3f} → {after[row.gold]:.3f}",
            f"{after['kl']:.1f}",
            f"{after['distinct_2']:.2f}",
            f"{before['ref_perplexity']:.2f} → {after['ref_perplexity']:.2f}",
            tokens(result),
            seconds(note),
            f"{result['steps']} / {result['updates']}",
            str(result["seed"]),
            f"`{row.module}`",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    head = (
        "| | VADER, before → after | KL, nats / completion | distinct-2 | reference perplexity "
        "| tokens drawn / trained, thousands | wall | steps / updates | seed "
        "| `python -m experiments.` |"
    )
    return "\n".join([head, "|---" * 10 + "|", *lines, "", *(f"* {note}" for note in notes), ""])


if __name__ == "__main__":
    launch(CONFIG, main)
