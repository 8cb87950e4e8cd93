"""Packed documents: each as if it stood alone, in values and gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from test_decoder_options import every_option  # noqa: F401  (a fixture)
from tiny import random_params

from rlhf_jax.models.attention import positions
from rlhf_jax.models.config import DecoderConfig
from rlhf_jax.models.transformer import Model
from rlhf_jax.train.state import init_state
from rlhf_jax.train.steps import make_sft_update
from rlhf_jax.types import SFTBatch

LENGTHS = (3, 5, 2)
TOKENS_T = np.arange(7, 17)
SEGMENT_T = np.repeat((1, 2, 3), LENGTHS)


def packed(padding=2):
    """One row of three documents, and its arrays."""
    tokens_BT = np.pad(TOKENS_T, (0, padding))[None]
    segment_BT = np.pad(SEGMENT_T, (0, padding))[None]
    return tokens_BT, segment_BT > 0, segment_BT


def alone():
    """The documents as rows of their own, right-padded."""
    tokens, attend = np.zeros((3, 5), int), np.zeros((3, 5), bool)
    for row, document in enumerate(np.split(TOKENS_T, np.cumsum(LENGTHS)[:-1])):
        tokens[row, : len(document)], attend[row, : len(document)] = document, True
    return tokens, attend


def gpt2_like():
    """Learned positions, which must begin anew too."""
    config = DecoderConfig(
        vocab_size=64, num_layers=2, d_model=16, num_heads=2, num_kv_heads=2, head_dim=8, d_ff=24,
        norm="layer", gated=False, activation="gelu_new", rope=None, max_positions=16,
    )  # fmt: skip
    model = Model(config)
    return model, random_params(model, 0, 0.3)


def test_trl_4170_positions_begin_anew_with_every_segment():
    segment_BT = np.array([[1, 1, 1, 2, 2, 2], [1, 1, 1, 1, 2, 0]])
    position_BT = np.asarray(positions(segment_BT > 0, segment_BT))
    assert position_BT[0].tolist() == [0, 1, 2, 0, 1, 2]
    assert position_BT[1][:5].tolist() == [0, 1, 2, 3, 0]


@pytest.mark.parametrize("kind", ["every option", "learned positions"])
def test_a_document_is_as_if_it_stood_alone(every_option, kind):  # noqa: F811
    model, params = every_option if kind == "every option" else gpt2_like()
    hidden = jax.jit(model.hidden)
    tokens_BT, attend_BT, segment_BT = packed()
    got_TD = np.asarray(hidden(params, tokens_BT, attend_BT, segment_BT))[0]
    assert np.isfinite(got_TD).all()
    single, real = alone()
    expected = np.asarray(hidden(params, single, real))[real]
    np.testing.assert_allclose(got_TD[: len(expected)], expected, atol=1e-5)
    joined = np.asarray(hidden(params, tokens_BT, attend_BT))[0]
    assert np.abs(joined[3:10] - expected[3:]).max() > 1e-3, "without segments they see each other"


def test_no_gradient_crosses_a_border(every_option):  # noqa: F811
    model, params = every_option
    tokens_BT, attend_BT, segment_BT = packed()

    @jax.jit
    def of_the_second(table_VD):
        changed = {**params, "embed": {"w_VD": table_VD}}
        hidden_BTD = model.hidden(changed, tokens_BT, attend_BT, segment_BT)
        return jnp.square(jnp.where(segment_BT[..., None] == 2, hidden_BTD, 0.0)).sum()

    touched = np.abs(jax.grad(of_the_second)(params["embed"]["w_VD"])).sum(axis=1) > 0
    assert np.flatnonzero(touched).tolist() == TOKENS_T[SEGMENT_T == 2].tolist()


def test_packed_rows_teach_what_the_documents_teach(every_option):  # noqa: F811
    """Loss and step agree, the first token of a document masked: it has no predictor in it."""
    model, params = every_option
    tokens_BT, attend_BT, segment_BT = packed()
    opens_BT = np.diff(segment_BT, axis=1, prepend=0) > 0
    rows = SFTBatch(
        tokens_BT=tokens_BT,
        attend_BT=attend_BT,
        mask_BT=attend_BT & ~opens_BT,
        segment_BT=segment_BT,
    )
    single, real = alone()
    apart = SFTBatch(tokens_BT=single, attend_BT=real, mask_BT=real & (np.arange(5) > 0))
    steps = []
    for batch in (rows, apart):
        tx = optax.sgd(0.1)
        state = init_state(jax.tree.map(jnp.array, params), tx)
        steps.append(make_sft_update(model, tx)(state, batch))
    (one, told), (other, expected) = steps
    assert float(told["loss"].value()) == pytest.approx(float(expected["loss"].value()), abs=1e-5)
    for a, b in zip(jax.tree.leaves(one.policy), jax.tree.leaves(other.policy), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)
