"""Rollouts of dialogues: what is counted, who ends them, and that nothing else decides a draw."""

import jax
import numpy as np
import pytest
from dialogue_toy import (
    COLUMNS,
    ENDS,
    PROMPT,
    TURN,
    TURNS,
    Counting,
    dialogue_config,
    talker,
    write_talker,
)

from rlhf_jax.bind import bind
from rlhf_jax.errors import ConfigError
from rlhf_jax.loops import online
from rlhf_jax.loops import setup as loop_setup
from rlhf_jax.loops.collect import judge, read_texts
from rlhf_jax.loops.common import step_key
from rlhf_jax.parallel.mesh import MeshConfig, make_mesh
from rlhf_jax.rewards.notes import counting
from rlhf_jax.types import replace

TOKENIZER = talker()
P, G = 4, 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_talker(tmp_path_factory.mktemp("models") / "talker")


@pytest.fixture(scope="module")
def setup(one_device, folder, tmp_path_factory):
    cfg = dialogue_config(folder, tmp_path_factory.mktemp("runs"))
    return cfg, online.set_up(cfg, online.read_inputs(cfg))


def drawn(setup, prompts=None, *, step=0, sample=None):
    cfg, made = setup
    prompts = made.inputs.prompts.take(np.arange(P)) if prompts is None else prompts
    with jax.set_mesh(made.mesh):
        rollout = (sample or made.functions.sample)(
            made.start.trained, prompts, step_key(cfg.seed, step, "sample")
        )
    return prompts, jax.device_get(rollout)


@pytest.fixture(scope="module")
def rollout(setup):
    return drawn(setup)


def test_rows_are_what_was_sampled_and_what_was_said_to_it(rollout):
    """Each row is played again from its own ids."""
    prompts, got = rollout
    assert got.tokens_BT.shape == (P * G, PROMPT + COLUMNS)
    seen = {"done": 0, "cut turn": 0, "no turns left": 0, "no room": 0}  # all are met
    for b in range(P * G):
        p = b // G
        np.testing.assert_array_equal(got.tokens_BT[b, :PROMPT], prompts.tokens_PL[p])
        np.testing.assert_array_equal(got.attend_BT[b, :PROMPT], prompts.attend_PL[p])
        ids, mask = got.tokens_BT[b, PROMPT:], got.mask_BT[b, PROMPT:]
        world, at, turn = Counting(), 0, 0
        world.reset(prompts.rows[p])
        while True:
            turn += 1
            length = 1
            while ids[at + length - 1] not in (2, *ENDS) and length < TURN:
                length += 1
            ended = ids[at + length - 1] in (2, *ENDS)
            assert mask[at : at + length].all()
            last = PROMPT + at + length - 1
            assert got.turns.end_BT[b, last] and got.turns.given_BT[b, last]
            before = [*prompts.tokens_PL[p][prompts.attend_PL[p]], *ids[:at]]
            text = TOKENIZER.decode_completion(before, ids[at : at + length])
            observation, reward, done = world.step(text)
            assert got.turns.score_BT[b, last] == np.float32(reward)
            at += length
            said = TOKENIZER.encode(observation, add_bos=False)
            no_room = COLUMNS - at < len(said) + TURN
            if done or not ended or turn == TURNS or no_room:
                break
            assert ids[at : at + len(said)].tolist() == said
            assert not mask[at : at + len(said)].any()
            at += len(said)
        assert got.truncated_B[b] == (not ended or not done)
        assert got.turns.end_BT[b].sum() == turn
        np.testing.assert_array_equal(got.attend_BT[b, PROMPT:], np.arange(COLUMNS) < at)
        assert not mask[at:].any() and (ids[at:] == TOKENIZER.pad_id).all()
        seen["done"] += done and ended
        seen["cut turn"] += not ended
        seen["no turns left"] += ended and not done and turn == TURNS
        seen["no room"] += ended and not done and turn < TURNS and no_room
    assert min(seen.values()) > 0, seen
    counted = got.mask_BT
    assert (got.logp_full_BT[counted] < 0).all() and (got.entropy_BT[counted] > 0).all()
    for name in ("logp_sampler_BT", "logp_full_BT", "entropy_BT"):
        assert not getattr(got, name)[~counted].any()
    np.testing.assert_array_equal(got.group_B, np.repeat(np.arange(P), G))


def test_the_trainer_scores_every_turn_as_the_sampler_did(setup, rollout):
    """Log-probs after a gap: the observation was read, at the positions that training gives it."""
    _, made = setup
    got = rollout[1]
    with jax.set_mesh(made.mesh):
        values = made.functions.score(made.start.trained, None, None, got)
    gap_BT = np.abs(np.asarray(values["logp_old_BT"]) - got.logp_full_BT)
    second_BT = got.mask_BT & (np.cumsum(got.turns.end_BT, axis=1) - got.turns.end_BT > 0)
    assert second_BT.any() and gap_BT[got.mask_BT].max() < 1e-5


def test_company_and_order_change_nothing(setup, rollout):
    _, made = setup
    _, got = rollout
    for index in ([2, 0, 3, 1], [3, 3, 3, 3], [0, 5, 6, 7]):
        _, other = drawn(setup, made.inputs.prompts.take(np.array(index)))
        for place, p in enumerate(index):
            if p < P:
                rows, own = slice(place * G, place * G + G), slice(p * G, p * G + G)
                np.testing.assert_array_equal(other.tokens_BT[rows], got.tokens_BT[own])
                np.testing.assert_array_equal(other.truncated_B[rows], got.truncated_B[own])
    # the samples of a prompt differ, and so do steps
    assert len({tuple(row) for row in got.tokens_BT}) == P * G
    assert (drawn(setup, step=1)[1].tokens_BT != got.tokens_BT).any(axis=1).all()


def test_later_turns_draw_with_keys_of_their_own(setup, rollout):
    """Where two turns begin alike in all but their number, they go on differently."""
    _, got = rollout
    turns = [
        tuple(got.tokens_BT[b, last + 1 - TURN : last + 1])
        for b in range(P * G)
        for last in np.flatnonzero(got.turns.end_BT[b])
    ]
    assert len(set(turns)) == len(turns)


def test_any_mesh_draws_the_same(folder, setup, rollout, tmp_path, monkeypatch):
    monkeypatch.setattr(loop_setup, "make_mesh", make_mesh)  # all eight devices
    cfg = dialogue_config(folder, tmp_path, mesh=MeshConfig(data=2, fsdp=2, tensor=2))
    made = online.set_up(cfg, online.read_inputs(cfg))
    assert made.mesh.devices.size == 8
    _, other = drawn((cfg, made))
    for name in ("tokens_BT", "mask_BT", "truncated_B"):
        np.testing.assert_array_equal(getattr(other, name), getattr(rollout[1], name))
    np.testing.assert_allclose(other.logp_full_BT, rollout[1].logp_full_BT, atol=1e-5)


def test_texts_and_turns_reach_the_reward_functions(setup, rollout):
    cfg, _ = setup
    prompts, got = rollout
    texts, completions, rows = read_texts(TOKENIZER, prompts, got)
    for b, row in enumerate(rows):
        said = row["dialogue"]
        assert row["number"] == prompts.rows[b // G]["number"] and texts[b] == row["prompt"]
        assert len(said) == got.turns.end_BT[b].sum()
        assert completions[b] == "".join(t["text"] + (t["observation"] or "") for t in said)
        assert [t["observation"] is None for t in said] == [False] * (len(said) - 1) + [True]
    judged = judge(cfg, TOKENIZER, prompts, got)
    total_B = (got.turns.score_BT * got.turns.given_BT).sum(axis=1)
    np.testing.assert_allclose(judged.score_BC[:, 0], total_B, rtol=1e-6)
    assert judged.means(cfg.rewards)["turns"] == got.turns.end_BT.sum() / (P * G)
    assert "dialogue" not in prompts.rows[0]


class Faulty(Counting):
    """Raises at the second turn of the dialogues about row 3."""

    def step(self, text):
        if self._until == 3 and self._turns == 1:
            raise RuntimeError("out of order")
        return super().step(text)


def with_environment(folder, tmp_path, environment, **changes):
    cfg = dialogue_config(folder, tmp_path, environment=environment, **changes)
    return cfg, online.set_up(cfg, online.read_inputs(cfg))


def test_a_failing_environment_ends_the_run_and_is_named(one_device, folder, tmp_path):
    broken = with_environment(folder, tmp_path, bind(Faulty))
    with pytest.raises(RuntimeError, match="out of order") as error:
        drawn(broken)
    assert "raised by step of environment Faulty, prompt 3, sample" in error.value.__notes__[0]
    assert "turn 2" in error.value.__notes__[0]


def test_or_leaves_the_row_unscored_and_is_counted(one_device, folder, rollout, tmp_path):
    cfg, made = with_environment(folder, tmp_path, bind(Faulty), reward_errors="skip")
    with counting() as counts:
        prompts, got = drawn((cfg, made))
    failed_B = ~got.turns.given_BT.any(axis=1)
    long_B = rollout[1].turns.end_BT.sum(axis=1) > 1
    np.testing.assert_array_equal(failed_B, (np.arange(P * G) // G == 3) & long_B)
    assert counts["reward_failures/Faulty"] == failed_B.sum() > 0
    judged = judge(cfg, TOKENIZER, prompts, got)
    np.testing.assert_array_equal(judged.valid_BC[:, 0], ~failed_B)
    # the others never notice
    np.testing.assert_array_equal(got.tokens_BT[~failed_B], rollout[1].tokens_BT[~failed_B])


class Wordless(Counting):
    def step(self, text):
        return None, 0.0, False


def test_a_broken_contract_is_a_message(one_device, folder, tmp_path):
    broken = with_environment(folder, tmp_path, bind(Wordless), reward_errors="skip")
    with pytest.raises(ConfigError, match="environment Wordless, prompt 0, sample 0, turn 1: the"):
        drawn(broken)


def test_one_turn_is_one_answer(one_device, folder, setup, rollout, tmp_path):
    single = with_environment(folder, tmp_path, bind(Counting), max_turns=1, max_columns=TURN)
    _, got = drawn(single)
    first = rollout[1]
    np.testing.assert_array_equal(
        np.where(got.mask_BT, got.tokens_BT, 0)[:, PROMPT:],
        np.where(got.mask_BT, first.tokens_BT[:, : PROMPT + TURN], 0)[:, PROMPT:],
    )
    assert (got.turns.end_BT.sum(axis=1) == 1).all()


def test_what_has_no_room_or_no_sense_is_refused(folder, tmp_path):
    with pytest.raises(ConfigError, match=r"max_columns=7 has no room for 2 turns .* at least 8"):
        dialogue_config(folder, tmp_path, max_columns=7)
    with pytest.raises(ConfigError, match=r"max_turns=0 is outside \[1"):
        dialogue_config(folder, tmp_path, max_turns=0)
    with pytest.raises(ConfigError, match=r"give bind\(Class, \.\.\.\)"):
        dialogue_config(folder, tmp_path, environment=bind(talker))
    too_long = dialogue_config(folder, tmp_path, max_columns=40)
    with pytest.raises(ConfigError, match=r"dialogue.max_columns = 48, but .* at most 32 pos"):
        online.read_inputs(too_long)
    cfg = dialogue_config(folder, tmp_path)
    with pytest.raises(ConfigError, match="a dialogue's are its turns"):
        replace(cfg, process_reward=bind(judge))
    without = replace(cfg, dialogue=None)
    made = online.set_up(without, online.read_inputs(without))
    prompts, got = drawn((without, made))
    with pytest.raises(ConfigError, match="dialogue_reward needs dialogues"):
        judge(without, TOKENIZER, prompts, got)
