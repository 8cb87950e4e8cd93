"""Parts that some algorithms add to the loop: greedy baselines, step scores, four models, a moving
reference, a frontier; and that a run with all of them resumes to the bit."""

import json
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toy import online_config, saved, share_of_low_bytes

from rlhf_jax.advantages import process_norm
from rlhf_jax.algorithms.dapo import dapo
from rlhf_jax.algorithms.grpo import grpo
from rlhf_jax.algorithms.ppo import ppo
from rlhf_jax.algorithms.remax import remax
from rlhf_jax.bind import bind
from rlhf_jax.data.frontier import FrontierConfig
from rlhf_jax.errors import ConfigError
from rlhf_jax.loops import online, run
from rlhf_jax.loops.measure import panels_of
from rlhf_jax.models.heads import init_reward_head
from rlhf_jax.models.reward import (
    RewardNotes,
    begin_reward_model,
    export_reward_model,
    forward_scores,
    load_reward_model,
)
from rlhf_jax.models.tokenizer import Tokenizer
from rlhf_jax.rewards.learned import learned
from rlhf_jax.types import replace

pytestmark = pytest.mark.usefixtures("one_device", "no_curves")


def lines_of(cfg):
    return [json.loads(line) for line in Path(cfg.out, "metrics.jsonl").read_text().splitlines()]


def steps_of(cfg):
    return [line for line in lines_of(cfg) if "skipped" in line]


def score_each_character(prompts, completions, rows):
    """A step is a character; ASCII is right."""
    return [[(n, float(c < "\x80")) for n, c in enumerate(text, 1)] for text in completions]


def test_process_supervision_trains(policy_folder, tmp_path):
    cfg = online_config(
        policy_folder,
        tmp_path,
        objective=replace(grpo(beta=None), advantage=bind(process_norm)),
        process_reward=bind(score_each_character),
        num_steps=16,
    )
    online.run(cfg)
    score = [line["score"] for line in steps_of(cfg)]
    assert np.mean(score[-4:]) > np.mean(score[:4]) + 0.2


@pytest.fixture(scope="module")
def remax_cfg(policy_folder, tmp_path_factory):
    """ReMax with one sample a prompt, a moving reference and a frontier."""
    return online_config(
        policy_folder,
        tmp_path_factory.mktemp("runs") / "straight",
        objective=remax(),
        num_samples=1,
        frontier=FrontierConfig(threshold=0.6, visits=1, revisit=0.25),
        refresh_reference_every=1,
        refresh_mix=0.25,
        num_steps=6,
    )


@pytest.fixture(scope="module")
def remax_run(remax_cfg, one_device):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "draw_curves", lambda *args, **kw: None)
        return online.run(replace(remax_cfg, checkpoint=replace(remax_cfg.checkpoint, every=1)))


def test_the_baseline_is_the_greedy_answers_score(remax_cfg, policy_folder, one_device):
    """The first step's policy loss is −Σ (score − greedy score) · log π, summed, over the rows."""
    inputs = online.read_inputs(remax_cfg)
    setup = online.set_up(remax_cfg, inputs)
    prompts = inputs.batches[0]
    key = jax.random.key(0)
    greedy = setup.functions.greedy(setup.start.params, prompts, key)
    again = setup.functions.greedy(setup.start.params, prompts, jax.random.key(1))
    np.testing.assert_array_equal(greedy.tokens_BT, again.tokens_BT)
    assert greedy.tokens_BT.shape[0] == len(prompts.texts)
    sampled = setup.functions.sample(setup.start.params, prompts, key)
    assert (np.asarray(sampled.tokens_BT) != np.asarray(greedy.tokens_BT)).any()
    scores = {
        "score_BC": np.asarray([[1.0], [0.0], [0.5], [0.25]], np.float32),
        "valid_BC": np.ones((4, 1), bool),
        "baseline_B": np.asarray([0.5, 0.5, 0.0, 0.25], np.float32),
    }
    values = dict.fromkeys(("logp_old_BT", "logp_ref_BT", "value_BT", "last_value_B"))
    objective = replace(remax_cfg.objective, reward_kl=None)
    batch, _ = setup.functions.label(objective, sampled, scores, values)
    mask_BT = np.asarray(sampled.mask_BT)
    want_BT = mask_BT * np.asarray([0.5, -0.5, 0.5, 0.0])[:, None]
    np.testing.assert_allclose(batch.advantage_BT, want_BT, atol=1e-6)


def test_greedy_tokens_are_drawn_and_not_trained(remax_cfg, remax_run):
    steps = steps_of(remax_cfg)
    trained = sum(round(4 * line["length"]) for line in steps)
    assert remax_run["tokens_trained"] == steps[-1]["tokens_trained"] == trained
    assert remax_run["tokens_drawn"] == steps[-1]["tokens_drawn"]
    # one greedy answer of at most 4 tokens beside each sampled one
    assert trained < remax_run["tokens_drawn"] <= trained + 6 * 4 * 4


def test_the_frontier_is_reported_and_kept(remax_cfg, remax_run):
    steps = steps_of(remax_cfg)
    assert steps[-1]["frontier/visited"] > 0.5
    settled = steps[-1]["frontier/solved"] + steps[-1]["frontier/unsolved"]
    # one answer a prompt is all right or all wrong: after one visit everything is settled
    assert settled == pytest.approx(steps[-1]["frontier/visited"])
    assert max(line["frontier/passed_over"] for line in steps) > 0
    _, host = saved(remax_cfg.out, 6)
    assert sum(entry[0] for entry in host["frontier"].values()) == 6 * 4
    assert host["position"] > 6 * 4


def test_a_moving_reference_follows_the_policy(remax_cfg, remax_run):
    before = saved(remax_cfg.out, 1)[0]
    after = saved(remax_cfg.out, 2)[0]
    names = [name for name in after if name.startswith("reference")]
    assert names
    for name in names:
        policy = after[name.replace("reference", "policy", 1)]
        np.testing.assert_allclose(after[name], 0.25 * policy + 0.75 * before[name], rtol=1e-5)
        assert (after[name] != before[name]).any() and (after[name] != policy).any()


def test_greedy_baselines_and_the_frontier_resume_to_the_bit(remax_cfg, remax_run, tmp_path):
    parts = replace(remax_cfg, out=str(tmp_path / "parts"))
    online.run(replace(parts, num_steps=3))
    online.run(parts)
    hosts = [saved(c.out, 6)[1] for c in (parts, remax_cfg)]
    for host in hosts:
        del host["seconds"]
    assert hosts[0] == hosts[1]
    arrays = [saved(c.out, 6)[0] for c in (parts, remax_cfg)]
    for name, x in arrays[0].items():
        np.testing.assert_array_equal(x, arrays[1][name], err_msg=name)


@pytest.fixture(scope="module")
def reward_folder(policy_folder, tmp_path_factory):
    """A reward model with the policy's shape and tokenizer, and a head that says something."""
    folder = tmp_path_factory.mktemp("models") / "reward"
    model, params = begin_reward_model(policy_folder, jax.random.key(0))
    head = init_reward_head(jax.random.key(1), model.config.d_model)
    params["head"] = {"w_D": 5 * head["w_D"], "b": jnp.float32(0.25)}
    tokenizer = Tokenizer.from_folder(policy_folder)
    notes = RewardNotes(max_tokens=24)  # a broken character is read as three bytes
    export_reward_model(folder, model.config, params, tokenizer, notes)
    return folder


def four_models(policy_folder, reward_folder, out, **changes):
    options = dict(
        objective=ppo(score_limit=5.0),
        rewards=(bind(learned, model=str(reward_folder), batch_rows=16),),
        watch=(bind(share_of_low_bytes),),
        critic_from=str(reward_folder),
        num_epochs=2,
    )
    return online_config(policy_folder, out, **options | changes)


def test_the_critic_begins_as_the_reward_model(policy_folder, reward_folder, tmp_path):
    cfg = four_models(policy_folder, reward_folder, tmp_path)
    setup = online.set_up(cfg, online.read_inputs(cfg))
    prompts = setup.inputs.batches[0]
    rollout = setup.functions.sample(setup.start.params, prompts, jax.random.key(0))
    values = setup.functions.score(None, None, setup.critic, rollout)
    model, params, _ = load_reward_model(reward_folder)
    score_B = forward_scores(model, params, rollout.tokens_BT, rollout.attend_BT)
    np.testing.assert_allclose(values["last_value_B"], score_B, rtol=1e-5, atol=1e-6)
    assert np.std(score_B) > 0.1


def test_four_models_train_and_the_gold_score_is_only_watched(
    policy_folder, reward_folder, tmp_path
):
    cfg = four_models(policy_folder, reward_folder, tmp_path / "watched")
    result = online.run(cfg)
    assert {"score", "watch/share_of_low_bytes", "kl"} <= result["before"].keys()
    steps = steps_of(cfg)
    for line in steps:
        assert 0 <= line["watch/share_of_low_bytes"] <= 1 and line["critic_grad_norm"] > 0
        assert line["updates"] == 2 * line["step"] and line["ratio_max"] > 1
    assert result["steps"] == 2 and result["updates"] == 4
    samples = Path(cfg.out, "samples.jsonl").read_text().splitlines()
    for sample in map(json.loads, samples):
        low = share_of_low_bytes([sample["prompt"]], [sample["completion"]], [{}])
        assert sample["share_of_low_bytes"] == pytest.approx(low[0])
    titles = [panel.title for panel in panels_of(cfg)]
    assert titles[:3] == ["Score", "Watched: share_of_low_bytes", "KL to the reference"]
    assert len(titles) == len(panels_of(online_config(policy_folder, "no/out"))) + 1
    # the same policy to the bit without it
    blind = replace(cfg, out=str(tmp_path / "blind"), watch=())
    online.run(blind)
    for name, x in saved(cfg.out, 2)[0].items():
        np.testing.assert_array_equal(x, saved(blind.out, 2)[0][name], err_msg=name)
    # policy, reference and critic are in the checkpoint; the reward model is a folder
    kinds = {name.split(".")[0].split("/")[0] for name in saved(cfg.out, 2)[0]}
    assert {"policy", "reference", "critic", "opt_state"} <= kinds


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(critic_from="x"), "critic_from is set, but the objective has no value term"),
        (dict(process_reward=bind(score_each_character)), "reads no step scores"),
        (dict(objective=replace(grpo(), advantage=bind(process_norm))), "give process_reward"),
        (dict(refresh_mix=0.5), "refresh_reference_every=None renews nothing"),
        (dict(refresh_mix=0.0, refresh_reference_every=1), r"refresh_mix=0.0 is outside \(0"),
        (dict(watch=bind(share_of_low_bytes)), "watch=.* is a Bound; it takes a tuple"),
        (dict(rewards=bind(share_of_low_bytes)), "rewards=.* is a Bound; it takes a tuple"),
        (
            dict(objective=dapo(), keep_reference=False, refresh_reference_every=2),
            "needs keep_reference",
        ),
    ],
)
def test_parts_that_do_not_fit_are_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        online_config("no/model", "no/out", **changes)


def test_a_critic_of_another_tokenizer_is_refused(
    policy_folder, reward_folder, stories_folder, tmp_path
):
    other = shutil.copytree(reward_folder, tmp_path / "other")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(stories_folder / "hf" / name, other)
    cfg = four_models(policy_folder, reward_folder, "no/out", critic_from=str(other))
    with pytest.raises(ConfigError, match="its tokenizer is not the policy's"):
        online.read_inputs(cfg)
    cfg = four_models(policy_folder, reward_folder, "no/out", max_new_tokens=25)
    with pytest.raises(ConfigError, match="33, but"):
        online.read_inputs(cfg)


# nats a token: the mean, the largest. Measured here: 2e-7 and 1e-6; .0025 and .016
GAP_BARS = {"float32": (1e-5, 1e-4), "bfloat16": (0.005, 0.05)}


@pytest.mark.parametrize("dtype", GAP_BARS)
def test_sampler_and_trainer_agree(dtype, policy_folder):
    """|log π| of one token, by the decoder with its cache and by the trainer's whole rows."""
    cfg = online_config(policy_folder, "no/out", compute_dtype=dtype, max_new_tokens=16)
    setup = online.set_up(cfg, online.read_inputs(cfg))
    rollout = setup.functions.sample(setup.start.params, setup.inputs.batches[0], jax.random.key(0))
    scored = setup.functions.score(setup.start.params, None, None, rollout)
    gap_BT = np.abs(np.asarray(scored["logp_old_BT"]) - np.asarray(rollout.logp_full_BT))
    gaps = gap_BT[np.asarray(rollout.mask_BT)]
    mean, largest = GAP_BARS[dtype]
    assert gaps.mean() <= mean and gaps.max() <= largest
    assert (gaps.mean() > 1e-5) == (dtype == "bfloat16")
