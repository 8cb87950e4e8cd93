"""What both loops share: the options of every run, its random keys, stopping, resuming."""

from __future__ import annotations

import re
import shlex
import signal
import sys
import threading
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp

from rlhf_jax.errors import Interrupted, check_choice, check_number
from rlhf_jax.models.lora import LoraConfig
from rlhf_jax.models.transformer import REMAT
from rlhf_jax.parallel.mesh import MeshConfig
from rlhf_jax.parts import check_kinds
from rlhf_jax.train.checkpoint import CheckpointConfig
from rlhf_jax.train.optim import OptimConfig

DTYPES = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}
PURPOSES = ("init", "sample", "shuffle", "evaluate")  # append only: the index is in the key


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """Options of every run, whatever it trains."""

    out: str
    """The run folder: config, metrics, samples, checkpoints, curves, result, exported policy.
    The same command resumes from its newest checkpoint."""
    seed: int = 0
    """Every draw of the run derives from it: initial weights, data order, samples."""
    restart: bool = False
    """Move what the run folder holds aside (to FOLDER.1, FOLDER.2, …) and begin anew."""
    num_steps: int
    """Steps of the loop (of an online loop: rollouts, not optimizer updates)."""
    micro_rows: int | None = None
    """Rows a forward and backward pass holds at once; gradients are added. None: all."""
    optim: OptimConfig = field(default_factory=OptimConfig)
    """The policy's optimizer."""
    lora: LoraConfig | None = None
    """Train low-rank adapters, of the policy and of a critic, and leave the model as it is. None:
    train all parameters."""
    mesh: MeshConfig = field(default_factory=MeshConfig)
    """Device counts along the axes data, fsdp and tensor."""
    compute_dtype: str = "float32"
    """float32 or bfloat16; parameters, log-probs and optimizer stay float32."""
    remat: str = "none"
    """What the backward pass recomputes: none (fastest), dots, or full (least memory)."""
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    """How often to save and how many to keep."""
    log_every: int = 1
    """Steps between two lines of metrics.jsonl."""
    on_nonfinite: str = "stop"
    """A step whose loss or gradient is not finite is never applied; then stop, or skip on."""

    def __post_init__(self):
        check_kinds(self)
        for name in ("num_steps", "log_every"):
            check_number(name, getattr(self, name), low=1)
        check_number("seed", self.seed, low=0, high=2**31 - 1)
        if self.micro_rows is not None:
            check_number("micro_rows", self.micro_rows, low=1)
        check_choice("compute_dtype", self.compute_dtype, DTYPES)
        check_choice("remat", self.remat, REMAT)
        check_choice("on_nonfinite", self.on_nonfinite, ("stop", "skip"))


def step_key(seed: int, step: int, purpose: str, draw: int = 0) -> jax.Array:
    """The key of one purpose in one step: the same after a resume, on any process."""
    key = jax.random.key(seed)
    for number in (PURPOSES.index(purpose), step, draw):
        key = jax.random.fold_in(key, number)
    return key


class StopRequest:
    """Turns SIGINT and SIGTERM into a flag that the loop reads between two steps.

    An exception in the middle of a step would leave donated buffers and half a checkpoint. A
    second signal is not held back.
    """

    def __init__(self):
        self.requested = False
        self._old = {}

    def __enter__(self):
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._old[number] = signal.signal(number, self._handle)
        return self

    def _handle(self, number, frame):
        self.requested = True
        self._restore()
        print("\nstopping after this step; once more stops at once", file=sys.stderr, flush=True)

    def _restore(self):
        for number, handler in self._old.items():
            signal.signal(number, handler)
        self._old = {}

    def __exit__(self, *exc):
        self._restore()

    def leave(self, out: str, step: int):
        """Raise what the launcher turns into a message: where it stands, how to go on."""
        # --restart once more would move aside what was just saved
        options = [o for o in sys.argv[1:] if not re.fullmatch(r"--(.+\.)?restart", o)]
        command = shlex.join(["python", *_program(), *options])
        raise Interrupted(f"stopped after step {step}; saved in {out}\nresume with: {command}")


def _program() -> list[str]:
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return ["-m", spec.name.removesuffix(".__main__")] if spec else [sys.argv[0]]
