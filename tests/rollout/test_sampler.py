"""The sampler: what a sample depends on, where it stops, and the log-probs it reports."""

from functools import cache
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlhf_jax.errors import ConfigError
from rlhf_jax.models.config import DecoderConfig
from rlhf_jax.models.transformer import Model
from rlhf_jax.ops.logprobs import token_logprobs
from rlhf_jax.parallel.mesh import MeshConfig, make_mesh
from rlhf_jax.parallel.sharding import shard, shard_rows
from rlhf_jax.rollout import sampler
from rlhf_jax.rollout.sampler import SamplingConfig, make_sampler
from rlhf_jax.types import replace

MODEL = Model(
    DecoderConfig(
        vocab_size=29, vocab_padded=32, num_layers=2, d_model=32, num_heads=8, num_kv_heads=4,
        head_dim=4, d_ff=32, max_positions=64,
    )
)  # fmt: skip
P, G, L, R, PAD = 4, 3, 5, 6, 0
ENDS = (1, 2, 3, 4)  # likely enough that some rows end and some do not
SAMPLING = SamplingConfig(num_samples=G, max_new_tokens=R, max_prompt_tokens=L, temperature=0.7)
TOKENS_PL = np.array(
    [[0, 0, 0, 7, 8], [9, 10, 11, 12, 13], [0, 20, 21, 22, 23], [0, 0, 0, 0, 17]], np.int32
)
ATTEND_PL = TOKENS_PL > 0
ID_P = np.array([40, 7, 1000, 3])


@cache
def params():
    tree = jax.tree.map(np.array, jax.jit(MODEL.init)(jax.random.key(3)))
    # the padded vocabulary would be drawn at every step if it were not masked
    tree["embed"]["w_VD"][MODEL.config.vocab_size :] *= 100
    return tree


@cache
def sampler_of(sampling, model=MODEL, end_ids=ENDS):
    return make_sampler(model, sampling, end_ids=end_ids, pad_id=PAD)


def draw(sampling=SAMPLING, *, rows=slice(None), seed=0, id_P=ID_P, **kw):
    sample = sampler_of(sampling, **kw)
    tokens_PL, attend_PL = TOKENS_PL[rows], ATTEND_PL[rows]
    rollout = sample(params(), tokens_PL, attend_PL, id_P[rows], jax.random.key(seed))
    return jax.tree.map(np.asarray, rollout)


def responses(rollout):
    """tokens_PGR"""
    return rollout.tokens_BT[:, -R:].reshape(-1, G, R)


def test_shapes_and_groups():
    rollout = draw()
    b, t = P * G, L + R
    assert rollout.tokens_BT.shape == rollout.mask_BT.shape == (b, t)
    np.testing.assert_array_equal(rollout.group_B, np.repeat(np.arange(P), G))
    np.testing.assert_array_equal(rollout.tokens_BT[:, :L], np.repeat(TOKENS_PL, G, 0))
    np.testing.assert_array_equal(rollout.attend_BT[:, :L], np.repeat(ATTEND_PL, G, 0))
    np.testing.assert_array_equal(rollout.attend_BT[:, L:], rollout.mask_BT[:, L:])
    assert not rollout.mask_BT[:, :L].any()
    assert rollout.tokens_BT.max() < MODEL.config.vocab_size


def test_mask_ends_with_the_first_end_token_of_the_set():
    rollout = draw()
    for tokens_R, mask_R, truncated in zip(
        rollout.tokens_BT[:, L:], rollout.mask_BT[:, L:], rollout.truncated_B, strict=True
    ):
        ends = [r for r, token in enumerate(tokens_R) if token in ENDS]
        length = ends[0] + 1 if ends else R
        assert mask_R.tolist() == [r < length for r in range(R)]
        assert (tokens_R[length:] == PAD).all()
        assert truncated == (not ends)
    assert 0 < rollout.truncated_B.sum() < P * G  # both kinds were tried
    off = ~rollout.mask_BT
    for name in ("logp_sampler_BT", "logp_full_BT", "entropy_BT"):
        assert (getattr(rollout, name)[off] == 0).all()


@cache
def full_forward():
    """Logits_BTV without a cache; [:, t] is about token t + 1."""

    def logits(params, rollout):
        hidden_BTD = MODEL.hidden(params, rollout.tokens_BT, rollout.attend_BT)
        return hidden_BTD, MODEL.logits(params, hidden_BTD)

    return jax.jit(logits)


def test_log_probs_are_the_trainers():
    rollout = draw()
    hidden_BTD, _ = full_forward()(params(), rollout)
    logp_BT, entropy_BT = token_logprobs(
        hidden_BTD,
        MODEL.head(params()),
        jnp.array(rollout.tokens_BT),
        temperature=SAMPLING.temperature,
        vocab=MODEL.config.vocab_size,
    )
    mask_BT = rollout.mask_BT
    np.testing.assert_allclose(rollout.logp_full_BT[mask_BT], logp_BT[mask_BT], atol=1e-4)
    np.testing.assert_allclose(rollout.entropy_BT[mask_BT], entropy_BT[mask_BT], atol=1e-4)
    np.testing.assert_array_equal(rollout.logp_sampler_BT, rollout.logp_full_BT)  # no filter
    assert logp_BT[mask_BT].std() > 0.3  # not a uniform distribution, which any T fits


def test_filtered_draws_report_both_distributions():
    """Under top-k 2, log-probs of sampler and full softmax differ by the log of the pair's mass."""
    rollout = draw(replace(SAMPLING, top_k=2))
    mask_BT = rollout.mask_BT[:, 1:]
    logits_BTV = full_forward()(params(), rollout)[1][:, :-1] / SAMPLING.temperature
    logp_BTV = np.asarray(jax.nn.log_softmax(logits_BTV))
    logp_BT = np.take_along_axis(logp_BTV, rollout.tokens_BT[:, 1:, None], -1)[..., 0]
    pair_BT = np.log(np.exp(np.sort(logp_BTV, -1)[..., -2:]).sum(-1))
    for name, expected_BT in [("logp_full_BT", logp_BT), ("logp_sampler_BT", logp_BT - pair_BT)]:
        got_BT = getattr(rollout, name)[:, 1:]
        np.testing.assert_allclose(got_BT[mask_BT], expected_BT[mask_BT], atol=1e-4)
    assert (pair_BT[mask_BT] < -0.1).any()


def test_samples_keys_and_prompts_each_draw_their_own():
    tokens_PGR = responses(draw())
    longer = tokens_PGR[(tokens_PGR != PAD).sum(-1) > 2].tolist()  # short ones may coincide
    assert len({tuple(row) for row in longer}) == len(longer) > P
    np.testing.assert_array_equal(tokens_PGR, responses(draw()))
    assert (tokens_PGR != responses(draw(seed=1))).any()
    other = responses(draw(id_P=ID_P + 1))
    assert (tokens_PGR != other).any(axis=(1, 2)).all()


def test_order_and_company_of_prompts_change_nothing():
    tokens_PGR = responses(draw())
    for rows in ([2, 0, 3, 1], [1, 1, 3, 1]):
        np.testing.assert_array_equal(responses(draw(rows=np.array(rows))), tokens_PGR[rows])


def test_a_sample_of_its_own_number_is_drawn_alone_as_among_the_others():
    whole = responses(draw())
    alone = sampler_of(replace(SAMPLING, num_samples=1))
    rows, key = (params(), TOKENS_PL, ATTEND_PL, ID_P), jax.random.key(0)
    for g in range(G):
        rollout = alone(*rows, key, first_P=np.full(P, g))
        np.testing.assert_array_equal(rollout.tokens_BT[:, -R:], whole[:, g])
    # nothing is drawn where a prompt is not open, and the others do not notice
    open_P = np.array([True, False, True, False])
    rollout = alone(*rows, key, first_P=np.arange(P) % G, open_P=open_P)
    for p in range(P):
        drawn = np.asarray(rollout.tokens_BT[p, -R:])
        np.testing.assert_array_equal(drawn, whole[p, p % G] if open_P[p] else PAD)
    np.testing.assert_array_equal(rollout.mask_BT.any(axis=1), open_P)
    np.testing.assert_array_equal(rollout.attend_BT[:, :L], ATTEND_PL)
    assert not rollout.truncated_B[~open_P].any()


def test_widths_and_sample_count_change_nothing():
    """Prompts padded wider, a longer limit, one more sample, one prompt alone: the same draws."""
    bigger = replace(SAMPLING, max_prompt_tokens=L + 3, max_new_tokens=R + 2, num_samples=G + 1)
    wide = np.pad(TOKENS_PL[1:2], ((0, 0), (3, 0)))
    rollout = sampler_of(bigger)(params(), wide, wide > 0, ID_P[1:2], jax.random.key(0))
    tokens_GR = np.asarray(rollout.tokens_BT)[:G, L + 3 : L + 3 + R]
    np.testing.assert_array_equal(tokens_GR, responses(draw())[1])


def test_small_rooms_and_looped_layers_draw_the_same(monkeypatch):
    tokens_PGR = responses(draw())
    looped = replace(MODEL, unroll_decode=False)
    np.testing.assert_array_equal(responses(draw(model=looped)), tokens_PGR)
    monkeypatch.setattr(sampler, "FIRST_ROOM", 2)  # R − 1 = 5 columns: rooms of 2, 4, 5
    sample = make_sampler(MODEL, SAMPLING, end_ids=ENDS, pad_id=PAD)
    again = sample(params(), TOKENS_PL, ATTEND_PL, ID_P, jax.random.key(0))
    np.testing.assert_array_equal(again.tokens_BT[:, L:].reshape(P, G, R), tokens_PGR)


def test_greedy_is_deterministic_and_the_likeliest():
    greedy = replace(SAMPLING, temperature=0)
    rollout = draw(greedy)
    np.testing.assert_array_equal(rollout.tokens_BT, draw(greedy, seed=9).tokens_BT)
    best_BT = np.asarray(full_forward()(params(), rollout)[1]).argmax(-1)
    mask_BT = rollout.mask_BT[:, 1:]
    np.testing.assert_array_equal(rollout.tokens_BT[:, 1:][mask_BT], best_BT[:, :-1][mask_BT])


@pytest.mark.parametrize("shape", [(2, 2, 2), (1, 1, 8)])
def test_eight_devices_draw_the_same(shape):
    """(1, 1, 8): four key/value heads on eight tensor devices are replicated."""
    mesh = make_mesh(MeshConfig(data=shape[0], fsdp=shape[1], tensor=shape[2]))
    prompts = shard_rows(mesh, (TOKENS_PL, ATTEND_PL, ID_P))
    rollout = sampler_of(SAMPLING)(shard(mesh, params()), *prompts, jax.random.key(0))
    one = draw()
    np.testing.assert_array_equal(rollout.tokens_BT, one.tokens_BT)
    np.testing.assert_array_equal(rollout.mask_BT, one.mask_BT)
    np.testing.assert_allclose(rollout.logp_full_BT, one.logp_full_BT, atol=1e-5)


# --- a decoder that recites: the next token is a table of the last ------------------------------


def reciting(table):
    """Layers that add nothing, an embedding of one-hots, a head that is the table."""
    config = DecoderConfig(
        vocab_size=32, num_layers=1, d_model=32, num_heads=1, num_kv_heads=1, head_dim=2, d_ff=2,
        tie_embeddings=False, max_positions=16,
    )  # fmt: skip
    model = Counting(config)
    tree = jax.tree.map(lambda x: np.zeros(x.shape, np.float32), model.abstract())
    tree["embed"]["w_VD"] = np.eye(32, dtype=np.float32)
    tree["norm_out"]["scale_D"] += 1
    for token, following in table.items():
        tree["head"]["w_DV"][token, following] = 1
    return model, tree


class Counting(Model):
    """Counts how often a decoding step ran."""

    steps = 0

    def decode(self, *args):
        def count():
            Counting.steps += 1

        jax.debug.callback(count)
        return super().decode(*args)


def recite(*chains, ends, limit):
    """Greedy responses to prompts of one token each, the first of its chain."""
    model, tree = reciting({a: b for chain in chains for a, b in pairwise(chain)})
    sampling = SamplingConfig(
        num_samples=1, max_new_tokens=limit, max_prompt_tokens=1, temperature=0
    )
    sample = make_sampler(model, sampling, end_ids=ends, pad_id=0)
    tokens_PL = np.array([[chain[0]] for chain in chains])
    Counting.steps = 0
    rollout = sample(tree, tokens_PL, tokens_PL > 0, np.arange(len(chains)), jax.random.key(0))
    jax.effects_barrier()
    return jax.tree.map(lambda x: np.asarray(x).tolist(), rollout), Counting.steps


def test_worked_ends_and_truncation():
    """Ends {2, 3}, four tokens at most: no end is truncated, an end at the limit is not."""
    rollout, _ = recite(
        [10, 11, 12, 13, 14], [15, 16, 17, 18, 3], [20, 21, 2, 9], ends=(2, 3), limit=4
    )
    assert [row[1:] for row in rollout.tokens_BT] == [
        [11, 12, 13, 14],
        [16, 17, 18, 3],
        [21, 2, 0, 0],
    ]
    assert [row[1:] for row in rollout.mask_BT] == [
        [True] * 4,
        [True] * 4,
        [True] * 2 + [False] * 2,
    ]
    assert rollout.truncated_B == [True, False, False]


def test_stops_when_all_rows_have_ended():
    """The longest of three responses has 3 tokens: the first comes from the prompt, two steps."""
    chains = [10, 11, 2, 9], [12, 13, 14, 3], [15, 2]
    rollout, steps = recite(*chains, ends=(2, 3), limit=12)
    assert [sum(row) for row in rollout.mask_BT] == [2, 3, 1] and steps == 2
    # one end id of two, or none: the rows that wait for another go on to the limit, whose last
    # token is drawn but not run
    assert recite(*chains, ends=(2,), limit=12)[1] == 11
    assert recite(*chains, ends=(), limit=12)[0].truncated_B == [True] * 3


@pytest.mark.parametrize(
    ("options", "ids", "says"),
    [
        ({"max_new_tokens": 60}, {}, "is 65; the model has 64 positions"),
        ({"top_k": 30}, {}, "top_k=30 exceeds vocab_size=29"),
        ({}, {"end_ids": (2, 29)}, "end_ids 29 is not in the vocabulary"),
        ({}, {"pad_id": -1}, "pad_id -1 is not in the vocabulary"),
        ({"num_samples": 0}, {}, "num_samples=0"),
    ],
)
def test_refuses(options, ids, says):
    with pytest.raises(ConfigError, match=says):
        make_sampler(MODEL, replace(SAMPLING, **options), **{"end_ids": ENDS, "pad_id": PAD, **ids})


def test_refuses_prompts_of_another_width():
    with pytest.raises(ConfigError, match="prompts are 4 tokens wide; max_prompt_tokens=5"):
        sampler_of(SAMPLING)(params(), TOKENS_PL[:, 1:], ATTEND_PL[:, 1:], ID_P, jax.random.key(0))


def test_filler_prompts_draw_finite_rows():
    """A prompt without a token (rows added to fill a mesh) harms nobody and nothing overflows."""
    empty_PL = np.where(np.arange(P)[:, None] == 1, 0, TOKENS_PL)
    rollout = sampler_of(SAMPLING)(params(), empty_PL, empty_PL > 0, ID_P, jax.random.key(0))
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(rollout))
    others = np.array([0, 2, 3])
    tokens_PGR = np.asarray(rollout.tokens_BT)[:, L:].reshape(P, G, R)
    np.testing.assert_array_equal(tokens_PGR[others], responses(draw())[others])
