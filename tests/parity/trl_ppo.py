"""One step of TRL's PPO: its whole `train`, with a table for every model.

`train` is one method from rollout to update, so all of it runs: scores placed, KL charged,
advantages whitened, two losses differentiated. The functions that would sample and run networks
are replaced by ones that hand out the point's numbers: "logits" are log-probs, one a token, and
`selective_log_softmax` reads them as they are.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
from parity.points import PROMPT
from parity.trl_rollout import END, PAD, WORD
from parity.trl_side import ACCELERATOR, stand_in, tensor, torch

ppo_trainer = pytest.importorskip(
    "trl.experimental.ppo.ppo_trainer", reason="TRL has PPO up to 1.12"
)


@dataclass(frozen=True)
class Critic:
    """Values of the point's columns when scored and now, and the score of every row."""

    old_BR: np.ndarray
    new_BR: np.ndarray
    score_B: np.ndarray


def ppo_step(at, critic: Critic, monkeypatch, cut_B=None, **numbers) -> dict:
    """The losses and KL that TRL logs, and the gradients of log-probs and values.

    A row ends with an end token unless `cut_B` says that it was cut short.
    """
    rows, width = at.mask_BR.shape
    logp_BR, value_BR = tensor(at.logp_BR, grad=True), tensor(critic.new_BR, grad=True)
    # The row's number stands in its prompt, so that a shuffled batch finds its rows again.
    prompt_BL = np.full((rows, PROMPT), WORD)
    prompt_BL[:, 0] += np.arange(rows)
    length_B = at.mask_BR.sum(1)
    response_BR = np.where(at.mask_BR, WORD, PAD)
    ended_B = np.ones(rows, bool) if cut_B is None else ~cut_B
    response_BR[ended_B, length_B[ended_B] - 1] = END
    tokens_BT = tensor(np.concatenate([prompt_BL, response_BR], axis=1))
    policy, critic_model, reference = (SimpleNamespace(name=n) for n in ("pi", "V", "ref"))
    model = SimpleNamespace(policy=policy, value_model=critic_model, train=lambda: None)

    def shifted(x_BR):
        """As a network gives it: column t − 1 speaks of token t, the prompt before it is junk."""
        return torch.nn.functional.pad(x_BR, (PROMPT - 1, 1))

    def forward(which, tokens_bT, _):
        if which is reference:
            return SimpleNamespace(logits=shifted(tensor(at.ref_BR))[..., None])
        row_b = tokens_bT[:, 0] - WORD
        logits = shifted(logp_BR[row_b])[..., None]
        return SimpleNamespace(logits=logits), shifted(value_BR[row_b])[..., None]

    def get_reward(which, *_):
        return shifted(tensor(critic.old_BR))[..., None], tensor(critic.score_B), None

    patches = dict(
        unwrap_model_for_generation=lambda *_, **__: nullcontext(model),
        batch_generation=lambda *_: (tokens_BT, tensor(at.old_BR)[..., None]),
        selective_log_softmax=lambda logits, _: logits[..., 0],
        forward=forward,
        get_reward=get_reward,
    )
    for name, patch in patches.items():
        monkeypatch.setattr(ppo_trainer, name, patch)
    logged = {}
    idle = SimpleNamespace(step=lambda: None, zero_grad=lambda: None, get_last_lr=lambda: [0.0])
    control = SimpleNamespace(should_save=False)
    made = stand_in(
        ppo_trainer.PPOTrainer,
        accelerator=SimpleNamespace(
            **vars(ACCELERATOR),
            print=lambda *_: None,
            accumulate=lambda _: nullcontext(),
            backward=lambda loss: loss.backward(),
        ),
        args=SimpleNamespace(**{**_sizes(rows, width), **numbers}),
        model=model,
        ref_model=reference,
        reward_model=None,
        optimizer=idle,
        lr_scheduler=idle,
        processing_class=SimpleNamespace(pad_token_id=PAD, eos_token_id=END),
        dataloader=[{"input_ids": tensor(prompt_BL)}],
        stop_token_id=None,
        state=SimpleNamespace(),
        control=control,
        callback_handler=SimpleNamespace(
            on_train_begin=lambda *_: control,
            on_step_end=lambda *_: control,
            on_train_end=lambda *_: control,
        ),
        is_deepspeed_enabled=False,
        train_dataset_len=rows,
        log=logged.update,
    )
    made.train()
    return dict(
        policy_loss=logged["loss/policy_avg"],
        value_loss=logged["loss/value_avg"],
        kl=logged["objective/kl"],
        gradients=(logp_BR.grad.numpy(), value_BR.grad.numpy()),
    )


def _sizes(rows, width) -> dict:
    """One rollout, one epoch, one minibatch; temperature 1 after TRL's own 1e-7."""
    return dict(
        num_total_batches=1,
        batch_size=rows,
        local_batch_size=rows,
        local_mini_batch_size=rows,
        per_device_train_batch_size=rows,
        local_rollout_forward_batch_size=rows,
        num_ppo_epochs=1,
        num_mini_batches=1,
        gradient_accumulation_steps=1,
        total_episodes=rows,
        num_sample_generations=0,
        logging_steps=None,
        eval_steps=None,
        save_steps=None,
        ds3_gather_for_generation=False,
        response_length=width,
        temperature=1 - 1e-7,
        missing_eos_penalty=None,
        whiten_rewards=False,
        kl_estimator="k1",
    )
