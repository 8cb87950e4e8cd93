"""TRL's way from scores to advantages and sampler corrections, run on given scores."""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace

import numpy as np
from parity.points import GROUP
from parity.trl_side import GRPO, stand_in, tensor

END, PAD, WORD = 1, 0, 5
TOKENIZER = SimpleNamespace(
    pad_token_id=PAD, eos_token_id=END, batch_decode=lambda ids, **_: [""] * len(ids)
)
# The defaults of the two config classes, as far as the rollout reads them.
ROLLOUT = dict(
    num_iterations=1,
    num_generations=GROUP,
    environment_factories=None,
    environments=None,
    tools=None,
    pad_to_multiple_of=None,
    mask_truncated_completions=False,
    scale_rewards="group",
    multi_objective_aggregation="sum_then_normalize",
    vllm_importance_sampling_mode="sequence_mask",
    vllm_importance_sampling_clip_min=None,
    vllm_importance_sampling_clip_max=3.0,
    reward_clip_range=None,
    normalize_advantages=False,
    log_multimodal=False,
    processing_class=TOKENIZER,
    _tokenizer=TOKENIZER,
    eos_token_ids=[END],
)


def rollout(trainer, at, score_BC, *, weights=None, **settings) -> dict:
    """`trainer._generate_and_score_completions` on the rows of a `points.Point`.

    Rows shorter than the point's columns end with an end token.

    score_BC: one column a reward function, NaN where the function does not apply. The policy that
    scores its own rollout is the point's old policy.
    """
    rows, columns = score_BC.shape
    names = [f"reward_{c}" for c in range(columns)]
    policy = SimpleNamespace(training=True, is_gradient_checkpointing=False)
    padded_BR = np.cumsum(at.mask_BR[:, ::-1], axis=1)[:, ::-1] > 0
    lengths = padded_BR.sum(axis=1)
    width = at.mask_BR.shape[1]
    ids = [[WORD] * n if n == width else [WORD] * (n - 1) + [END] for n in lengths]
    made = stand_in(
        trainer,
        model=policy,
        ref_model=object(),
        args=SimpleNamespace(
            per_device_train_batch_size=rows,
            gradient_checkpointing_kwargs=None,
            gradient_accumulation_steps=1,
            steps_per_generation=2,  # several updates a rollout, so old log-probs are taken
        ),
        reward_funcs=names,
        reward_func_names=names,
        reward_weights=tensor(np.ones(columns) if weights is None else np.asarray(weights)),
        _pending_extra_logs={},
        _pending_metrics={},
        _logs=defaultdict(list, rewards=defaultdict(list), extra=defaultdict(list)),
        **{**GRPO, **ROLLOUT, **settings},
    )
    sampled = [at.sampler_BR[b, :n].tolist() for b, n in enumerate(lengths)]
    tools = [at.mask_BR[b, :n].astype(int).tolist() for b, n in enumerate(lengths)]
    prompts = [[WORD, WORD]] * rows
    # GRPO's and RLOO's `_generate` differ in what they return.
    if hasattr(trainer, "get_off_policy_mask"):
        made._generate = lambda _: (prompts, ids, tools, ids, sampled, {}, None, [])
    else:
        made._generate = lambda _: (prompts, ids, ids)

    def logps(model, *_, **__):
        return tensor(at.old_BR if model is policy else at.ref_BR), tensor(at.entropy_BR), None

    made._get_per_token_logps_and_entropies = logps
    made._calculate_rewards = lambda *_: tensor(score_BC)
    return made._generate_and_score_completions([{"prompt": "p"} for _ in range(rows)])
