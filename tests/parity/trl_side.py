"""TRL's own methods, run on given log-probs: its trainers without models, data or files.

An object is made without `__init__` and given the attributes that the method reads; the method
that would run a model is replaced by one that returns the log-probs of the point. The formulas
are TRL's, line for line as installed.
"""

from __future__ import annotations

import os
from collections import defaultdict
from types import SimpleNamespace

import numpy as np
import pytest

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")  # it warns when imported
ABSENT = "parity with TRL needs torch and trl: pip install .[parity]"
torch = pytest.importorskip("torch", reason=ABSENT)
GRPOTrainer = pytest.importorskip("trl.trainer.grpo_trainer", reason=ABSENT).GRPOTrainer
RLOOTrainer = pytest.importorskip("trl.trainer.rloo_trainer", reason=ABSENT).RLOOTrainer


def _same(x, *args, **kw):
    return x


ACCELERATOR = SimpleNamespace(
    device=torch.device("cpu"),
    num_processes=1,
    process_index=0,
    use_distributed=False,
    is_main_process=True,
    sync_gradients=True,
    gather=_same,
    gather_for_metrics=_same,
    reduce=_same,
    pad_across_processes=_same,
    unwrap_model=_same,
)


def stand_in(trainer, **attributes):
    """A trainer that was never initialised, with these attributes."""
    made = object.__new__(trainer)
    vars(made).update(
        accelerator=ACCELERATOR,
        model=SimpleNamespace(training=True),
        aux_loss_enabled=False,
        _metrics={"train": defaultdict(list)},
        _total_train_tokens=0,
    )
    vars(made).update(attributes)
    return made


def tensor(x, grad: bool = False):
    x = np.asarray(x)
    kind = torch.float32 if x.dtype.kind == "f" else None
    return torch.tensor(x, dtype=kind, requires_grad=grad)


# What GRPOConfig has by default, except that the losses here have one process and one micro-batch.
GRPO = dict(
    use_liger_kernel=False,
    loss_type="grpo",
    importance_sampling_level="token",
    beta=0.0,
    epsilon_low=0.2,
    epsilon_high=0.2,
    top_entropy_quantile=1.0,
    off_policy_mask_threshold=None,
    use_vllm=False,
    vllm_importance_sampling_correction=True,
    max_completion_length=16,
    current_gradient_accumulation_steps=1,
    _entropy_bonus_enabled=False,
    use_adaptive_entropy=False,
    entropy_coef=0.0,
)
GRPO_ARGS = dict(
    delta=None,
    use_bias_correction_kl=False,
    steps_per_generation=1,
    sapo_temperature_pos=1.0,
    sapo_temperature_neg=1.05,
)


def policy_loss(
    at, trainer=GRPOTrainer, *, ratio_BR=None, sampled: bool = True, **settings
) -> tuple[float, np.ndarray]:
    """(loss, gradient) of `trainer._compute_loss` at a `points.Point`.

    `ratio_BR` is the sampler correction that the rollout has stored; `sampled` whether the
    sampler's own log-probs are there.
    """
    args = {k: settings.pop(k, v) for k, v in GRPO_ARGS.items()}
    made = stand_in(trainer, args=SimpleNamespace(**args), **{**GRPO, **settings})
    logp_BR = tensor(at.logp_BR, grad=True)
    made._get_per_token_logps_and_entropies = lambda *_, **__: (
        logp_BR,
        tensor(at.entropy_BR),
        None,
    )
    prompt_BL = torch.ones(len(at.mask_BR), 2, dtype=torch.long)
    padded_BR = np.cumsum(at.mask_BR[:, ::-1], axis=1)[:, ::-1] > 0
    inputs = dict(
        prompt_ids=prompt_BL,
        prompt_mask=prompt_BL,
        completion_ids=torch.ones(at.mask_BR.shape, dtype=torch.long),
        completion_mask=tensor(padded_BR.astype(int)),
        tool_mask=tensor((at.mask_BR | ~padded_BR).astype(int)),
        advantages=tensor(at.advantage_B if at.advantage_BR is None else at.advantage_BR),
        old_per_token_logps=tensor(at.old_BR),
        sampling_per_token_logps=tensor(at.sampler_BR),
        ref_per_token_logps=tensor(at.ref_BR),
        num_items_in_batch=torch.tensor(float(at.mask_BR.sum())),
        importance_sampling_ratio=None if ratio_BR is None else tensor(ratio_BR),
    )
    if not sampled:
        del inputs["sampling_per_token_logps"]
    return backward(made._compute_loss(None, inputs), logp_BR)


def rloo_loss(at, **settings) -> tuple[float, np.ndarray]:
    """(loss, gradient) of RLOO's `_compute_loss`; it knows no tool tokens."""
    made = stand_in(RLOOTrainer, **{**GRPO, **settings})
    logp_BR = tensor(at.logp_BR, grad=True)
    made._get_per_token_logps_and_entropies = lambda *_, **__: (
        logp_BR,
        tensor(at.entropy_BR),
        None,
    )
    prompt_BL = torch.ones(len(at.mask_BR), 2, dtype=torch.long)
    inputs = dict(
        prompt_ids=prompt_BL,
        prompt_mask=prompt_BL,
        completion_ids=torch.ones(at.mask_BR.shape, dtype=torch.long),
        completion_mask=tensor(at.mask_BR.astype(int)),
        advantages=tensor(at.advantage_B),
        old_logps=tensor((at.old_BR * at.mask_BR).sum(axis=1)),
    )
    return backward(made._compute_loss(None, inputs), logp_BR)


def backward(loss, leaf) -> tuple[float, np.ndarray]:
    loss.backward()
    return float(loss.detach()), leaf.grad.numpy()
