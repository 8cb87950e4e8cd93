"""The scripts, run against fake_gcloud.py: a folder that stands for a project in the cloud."""

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

from fake_gcloud import parse

SCRIPTS = Path(__file__).parents[2] / "tpu_scripts"
ALL = ("create", "setup", "run", "status", "fetch", "delete")
PLACE = ("--name", "pod", "--zone", "us-east5-a")


def executable(file: Path, text: str):
    file.parent.mkdir(exist_ok=True, parents=True)
    file.write_text(text)
    file.chmod(0o755)


class Cloud:
    def __init__(self, folder: Path):
        self.folder = folder
        fake = Path(__file__).with_name("fake_gcloud.py")
        for tool in ("gcloud", "xpk"):
            line = f'exec {shlex.quote(sys.executable)} -S {shlex.quote(str(fake))} "$@"\n'
            if tool == "xpk":
                line = f'printf "%s\\n" "$*" >>{shlex.quote(str(folder))}/xpk\n'
            executable(folder / "bin" / tool, f"#!/bin/sh\n{line}")
        self.now(slices={"pod-0": ["READY", 2], "pod-1": ["READY", 2]}, request="pod")

    def now(self, **scenario):
        (self.folder / "scenario.json").write_text(json.dumps(scenario))

    def change(self, **news):
        self.now(**json.loads((self.folder / "scenario.json").read_text()) | news)

    def run(self, script, *options, input="", place=PLACE, **env):
        env = {
            "PATH": f"{self.folder / 'bin'}:/usr/bin:/bin",
            "HOME": str(self.folder / "laptop"),
            "FAKE_CLOUD": str(self.folder),
            "TPU_POLL_SECONDS": "0",
            **env,
        }
        return subprocess.run(
            ["bash", str(SCRIPTS / f"{script}.sh"), *place, *options],
            env=env,
            input=input,
            text=True,
            capture_output=True,
            cwd=self.folder,
            timeout=60,
        )

    def calls(self, *which):
        file = self.folder / "calls.jsonl"
        calls = (
            [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        )
        return [call for call in calls if not which or " ".join(call[2:4]) in which]

    def homes(self):
        return [self.folder / f"pod-{s}.{w}" for s in (0, 1) for w in (0, 1)]

    def set_up(self, commit="abc123def456"):
        for home in self.homes():
            (home / "rlhf_jax/code" / commit).mkdir(parents=True)
            (home / "rlhf_jax/work").mkdir()
            (home / "rlhf_jax/current").symlink_to(home / "rlhf_jax/code" / commit)
            (home / "rlhf_jax/venv/bin").mkdir(parents=True)
            (home / "rlhf_jax/venv/bin/python").symlink_to(sys.executable)

    def stop_all(self):
        for file in self.folder.glob("pod-*/rlhf_jax/jobs/*/pid"):
            with contextlib.suppress(ProcessLookupError, ValueError):
                os.kill(int(file.read_text()), signal.SIGKILL)


EXTRA = {
    "create": ("--type", "v5p-64"),
    "run": ("--", "python", "-m", "experiments.quickstart"),
    "fetch": ("--run", "quickstart"),
}


def flags_of(call):
    return parse(call)[2]
