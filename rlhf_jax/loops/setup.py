"""What an online run works with: inputs read from disk, then model and functions on the mesh."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from jax.sharding import Mesh

from rlhf_jax.algorithms.objective import PolicyObjective
from rlhf_jax.data.prompts import PromptSet, both_parts
from rlhf_jax.errors import ConfigError, check_divides
from rlhf_jax.loops.dialogues import check_dialogue
from rlhf_jax.loops.functions import Functions, build
from rlhf_jax.loops.run import check_vocabulary
from rlhf_jax.loops.start import Start, model_print, new_adapters, start_policy, with_files
from rlhf_jax.models.convert import read_config
from rlhf_jax.models.heads import init_scalar_head
from rlhf_jax.models.reward import check_reward_model, load_reward_model, read_trunk_config
from rlhf_jax.models.tokenizer import Tokenizer
from rlhf_jax.models.transformer import Model
from rlhf_jax.models.weights import fingerprint
from rlhf_jax.parallel.mesh import make_mesh
from rlhf_jax.parallel.sharding import row_shards
from rlhf_jax.train.microbatch import check_micro_rows
from rlhf_jax.train.state import TrainState, init_state
from rlhf_jax.types import Prompts


@dataclass(frozen=True)
class Inputs:
    """Tokenizer and prompts of an `OnlineConfig`; `identity` changes with them or the model."""

    tokenizer: Tokenizer
    prompts: PromptSet
    held_out: PromptSet
    batches: Sequence[Prompts]
    identity: str


@dataclass(frozen=True)
class Setup:
    """The model and its functions on a mesh, and the optimizers of policy and critic.

    `start` is the policy as the run begins and `critic` {"trunk", "head"}: what is trained of it,
    None where the objective reads no values.
    """

    inputs: Inputs
    mesh: Mesh
    start: Start
    critic: dict[str, Any] | None
    functions: Functions
    optimizers: tuple

    @property
    def model(self) -> Model:
        return self.start.model


def read_inputs(cfg) -> Inputs:
    """Read and check what a user gave, before a device is touched.

    Raises:
        ConfigError: model folder, tokenizer, prompts or a length; it names what and where.
    """
    inputs = read_prompts(cfg)
    if cfg.process_reward is not None:
        inputs = replace(inputs, identity=with_files(inputs.identity, [cfg.process_reward]))
    if cfg.critic_from is None:
        return inputs
    check_critic(cfg.critic_from, inputs.tokenizer, inputs.prompts, cfg.columns)
    return replace(inputs, identity=f"{inputs.identity}-{fingerprint(cfg.critic_from)}")


def read_prompts(cfg) -> Inputs:
    """What every `RolloutConfig` reads: tokenizer and prompts of its model. Raises likewise."""
    tokenizer, config = Tokenizer.from_folder(cfg.model), read_config(cfg.model)
    check_vocabulary(tokenizer, config, cfg.model)
    if cfg.columns > config.max_positions:
        more = "max_new_tokens" if cfg.dialogue is None else "dialogue.max_columns"
        raise ConfigError(
            f"sampling.max_prompt_tokens + {more} = {cfg.columns}, but {cfg.model} was made for at "
            f"most {config.max_positions} positions"
        )
    train_rows, held_out_rows = both_parts(cfg.prompts())
    options = dict(max_prompt_tokens=cfg.sampling.max_prompt_tokens, over_long=cfg.over_long)
    prompts = PromptSet.from_rows(train_rows, tokenizer, name="training prompts", **options)
    held_out = PromptSet.from_rows(held_out_rows, tokenizer, name="held-out prompts", **options)
    shared = set(prompts.texts) & set(held_out.texts)
    if shared:
        logging.getLogger(__name__).warning(
            "%d held-out prompts are training prompts too: what is measured on them is no test",
            len(shared),
        )
    if cfg.dialogue is not None:
        check_dialogue(cfg.dialogue, tokenizer, prompts.rows[0])
    identity = "-".join([model_print(cfg), prompts.fingerprint, held_out.fingerprint])
    environments = [] if cfg.dialogue is None else [cfg.dialogue.environment]
    identity = with_files(identity, [*cfg.rewards, *cfg.watch, *environments])
    batches = prompts.batches(cfg.num_prompts, cfg.seed)
    return Inputs(tokenizer, prompts, held_out, batches, identity)


def check_critic(folder: str, tokenizer: Tokenizer, prompts: PromptSet, length: int) -> None:
    """Refuse what is no reward model, or a critic that cannot read the policy's ids, or rows of
    that length."""
    check_reward_model(folder)
    config, own = read_trunk_config(folder), Tokenizer.from_folder(folder)
    texts = prompts.texts[:8]
    if own.vocab_size != tokenizer.vocab_size or any(
        own.encode(text) != tokenizer.encode(text) for text in texts
    ):
        raise ConfigError(
            f"critic_from={folder}: its tokenizer is not the policy's, and a critic reads the ids "
            "that the policy writes; train the reward model from a model with the same tokenizer"
        )
    if length > config.max_positions:
        raise ConfigError(
            f"critic_from={folder} has {config.max_positions} positions; prompt and response "
            f"are up to {length} tokens"
        )


def set_up(cfg, inputs: Inputs) -> Setup:
    """Load the model onto the mesh and make the functions.

    Raises:
        ConfigError: devices, batch sizes or weights that do not fit together.
    """
    mesh = make_mesh(cfg.mesh)
    check_divides("num_prompts", cfg.num_prompts, "mesh data*fsdp", row_shards(mesh))
    check_micro_rows(cfg.update_rows, cfg.micro_rows, mesh)
    start = start_policy(cfg, mesh)
    critic_model, critic, start = first_critic(cfg, start, mesh)
    functions, optimizers = build(
        cfg,
        start.model,
        end_ids=inputs.tokenizer.end_ids,
        pad_id=inputs.tokenizer.pad_id,
        mesh=mesh,
        critic_model=critic_model,
        tokenizer=inputs.tokenizer,
    )
    return Setup(inputs, mesh, start, critic, functions, optimizers)


def first_critic(cfg, start: Start, mesh: Mesh) -> tuple[Model, dict[str, Any] | None, Start]:
    """The critic's decoder and its {"trunk", "head"}: the policy with a head of zeros, or a reward
    model (trunk, head and normalisation: V of a whole row begins as the reward model's score).

    With adapters the trunk is adapted too, on a base that it shares with the policy unless it is a
    reward model, whose trunk joins the base; the head is trained whole. -> also that start.
    """
    model = start.model
    if not cfg.objective.needs_critic:
        return model, None, start
    if cfg.critic_from is None:
        head = init_scalar_head(model.config.d_model)
        return model, {"trunk": start.trained, "head": head}, start
    options = dict(mesh=mesh, compute_dtype=model.compute_dtype, remat=cfg.remat)
    model, params = load_reward_model(cfg.critic_from, **options)[:2]
    if start.base is None:
        return model, params, start
    adapters = new_adapters(cfg, params["trunk"], mesh, draw=2)
    start = replace(start, base=replace(start.base, critic=params["trunk"]))
    return model, {"trunk": adapters, "head": params["head"]}, start


def first_state(cfg, setup: Setup) -> TrainState:
    """Step 0: the policy, its reference, and a critic where the objective asks for one."""
    tx, critic_tx = setup.optimizers
    return init_state(
        setup.start.trained,
        tx,
        with_reference=cfg.holds_reference,
        critic=setup.critic,
        critic_tx=critic_tx,
        reward_kl_coef=first_kl_coef(cfg.objective),
        base=setup.start.base,
        mesh=setup.mesh,
    )


def first_kl_coef(objective: PolicyObjective) -> float | None:
    """β at the start where a controller adapts it; None where it is fixed."""
    kl = objective.reward_kl
    return None if kl is None or kl.controller is None else float(kl.coef)
