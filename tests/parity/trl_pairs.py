"""TRL's preference, unpaired and reward trainers on tables of logits; see `trl_side`."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
from parity.pairs import DESIRABLE_R
from parity.trl_side import ACCELERATOR, backward, stand_in, tensor, torch
from trl.experimental.bco.bco_trainer import BCOTrainer, RunningMoments
from trl.experimental.cpo.cpo_trainer import CPOTrainer
from trl.experimental.orpo.orpo_trainer import ORPOTrainer
from trl.trainer.dpo_trainer import DPOTrainer
from trl.trainer.kto_trainer import KTOTrainer
from trl.trainer.reward_trainer import RewardTrainer

DPO = dict(
    beta=0.1,
    label_smoothing=0.0,
    loss_types=["sigmoid"],
    loss_weights=[1.0],
    f_divergence_type="reverse_kl",
    f_alpha_divergence_coef=0.5,
    use_weighting=False,
    use_liger_kernel=False,
    precompute_ref_logps=True,
    ld_alpha=None,
    _tp_size=1,
)


def table(at):
    """(leaf, model): a model that returns the point's logits whatever it is asked."""
    leaf = tensor(at.flat("logits_BSTV"), grad=True)
    # Times one: some trainers write into what they get, which a leaf does not allow.
    return leaf, lambda *_, **__: SimpleNamespace(logits=leaf * 1)


def flat_inputs(at) -> dict:
    return dict(
        input_ids=tensor(at.flat("tokens_BST")),
        attention_mask=tensor(at.flat("attend_BST").astype(int)),
        completion_mask=tensor(at.flat("mask_BST").astype(int)),
    )


def dpo_loss(at, *, discopop_tau=0.05, **settings):
    """(loss, gradient of the logits) of `DPOTrainer._compute_loss`."""
    leaf, model = table(at)
    made = stand_in(
        DPOTrainer, args=SimpleNamespace(discopop_tau=discopop_tau), **{**DPO, **settings}
    )
    chosen_B, rejected_B = tensor(at.logp_ref_BS).unbind(1)
    inputs = dict(flat_inputs(at), ref_chosen_logps=chosen_B, ref_rejected_logps=rejected_B)
    return backward(made._compute_loss(model, inputs, False), leaf)


def kto_loss(at, kl_logp_R, kl_ref_R, **settings):
    """`KTOTrainer._compute_loss`; kl_*_R: log-probs of the mismatched pairs."""
    leaf, model = table(at)
    numbers = dict(loss_type="kto", calculate_KL=True, desirable_weight=1.0, undesirable_weight=1.0)
    made = stand_in(KTOTrainer, **{**DPO, **numbers, **settings})
    made._compute_kl_logps = lambda *_: tensor(kl_logp_R)
    inputs = dict(
        flat_inputs(at),
        label=tensor(DESIRABLE_R),
        ref_logps=tensor(at.flat("logp_ref_BS")),
        ref_KL_logps=tensor(kl_ref_R),
    )
    return backward(made._compute_loss(model, inputs, False), leaf)


def bco_losses(points, *, beta):
    """`BCOTrainer.get_batch_loss_metrics` on one batch after another: δ is a running mean."""
    made = stand_in(
        BCOTrainer,
        beta=beta,
        is_encoder_decoder=False,
        embedding_func=None,
        embedding_tokenizer=None,
        running=RunningMoments(accelerator=ACCELERATOR),
    )
    for at in points:
        leaf, model = table(at)
        batch = dict(
            completion_input_ids=tensor(at.flat("tokens_BST")),
            completion_attention_mask=tensor(at.flat("attend_BST").astype(int)),
            completion_labels=_labels(at.flat("tokens_BST"), at.flat("mask_BST")),
            label=[bool(x) for x in DESIRABLE_R],
            reference_logps=tensor(at.flat("logp_ref_BS")),
            embedding_input_ids=torch.ones(len(DESIRABLE_R), 1, dtype=torch.long),
            embedding_attention_mask=torch.ones(len(DESIRABLE_R), 1, dtype=torch.long),
        )
        loss, metrics = made.get_batch_loss_metrics(model, batch)
        yield (*backward(loss, leaf), metrics["delta"])


def orpo_loss(at, *, beta):
    return _reference_free(ORPOTrainer, at, beta=beta, padding_value=0)


def cpo_loss(at, **settings):
    numbers = dict(loss_type="sigmoid", label_smoothing=0.0, alpha=0.0, cpo_alpha=1.0)
    return _reference_free(CPOTrainer, at, pad_token_id=0, **{**numbers, **settings})


def _reference_free(trainer, at, **settings):
    leaf, model = table(at)
    made = stand_in(trainer, is_encoder_decoder=False, **settings)
    batch = {}
    for s, side in enumerate(("chosen", "rejected")):
        tokens_BT, mask_BT = at.tokens_BST[:, s], at.mask_BST[:, s]
        batch[f"{side}_input_ids"] = tensor(tokens_BT)
        batch[f"{side}_attention_mask"] = tensor(at.attend_BST[:, s].astype(int))
        batch[f"{side}_labels"] = _labels(tokens_BT, mask_BT)
    loss, _ = made.get_batch_loss_metrics(model, batch)
    return backward(loss, leaf)


def reward_loss(score_BS, *, margin_B=None, centring=None):
    """(loss, gradient of score_BS) of `RewardTrainer.compute_loss`."""
    leaf = tensor(score_BS, grad=True)
    made = stand_in(
        RewardTrainer, args=SimpleNamespace(center_rewards_coefficient=centring), _tp_size=1
    )
    inputs = dict(attention_mask=torch.ones(2 * len(score_BS), 3))
    if margin_B is not None:
        inputs["margin"] = tensor(margin_B)

    def model(margin=None, **_):
        return SimpleNamespace(logits=leaf.T.reshape(-1, 1))

    return backward(made.compute_loss(model, inputs), leaf)


def _labels(tokens_RT, mask_RT):
    return tensor(np.where(mask_RT, tokens_RT, -100))
