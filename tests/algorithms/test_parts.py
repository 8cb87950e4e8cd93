"""What may stand in a record: parts of another kind are refused where they are written."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlhf_jax.advantages import gae, group_norm
from rlhf_jax.algorithms.dpo import dpo
from rlhf_jax.algorithms.grpo import grpo
from rlhf_jax.algorithms.kto import kto
from rlhf_jax.algorithms.objective import PolicyObjective
from rlhf_jax.algorithms.preference import PreferenceObjective
from rlhf_jax.algorithms.preference_unpaired import UnpairedObjective
from rlhf_jax.algorithms.reward_model import RewardObjective
from rlhf_jax.algorithms.select import drop_truncated
from rlhf_jax.bind import bind
from rlhf_jax.errors import ConfigError, ConfigWarning, check_number, plain_number
from rlhf_jax.losses import preference, preference_unpaired
from rlhf_jax.losses.aggregate import constant_length, token_mean
from rlhf_jax.losses.kl import KL, adaptive_coef, k1, k3
from rlhf_jax.losses.nll import NLL
from rlhf_jax.losses.surrogate import clipped
from rlhf_jax.losses.value import ValueTerm, clipped_squared, squared
from rlhf_jax.types import replace

NAN = float("nan")


def policy(**parts):
    return PolicyObjective(**{"advantage": bind(group_norm), **parts})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: policy(advantage="gae"), r"advantage='gae' is a str; .* bind\(gae, ...\)"),
        (lambda: policy(surrogate=None), "surrogate=None is left out; it takes a function"),
        (lambda: policy(aggregate=0.5), "aggregate=0.5 is a float"),
        (lambda: policy(loss_kl=0.04), "loss_kl=0.04 is a float; it takes KL or None"),
        (lambda: policy(value=bind(squared)), r"value=squared\(\) is a Bound; it takes ValueTerm"),
        (lambda: policy(entropy="0.01"), "entropy='0.01' is a str; it takes a number or None"),
        (lambda: policy(entropy=True), "entropy=True is a bool"),
        (lambda: policy(select="drop_truncated"), "select='drop_truncated' is a str"),
        (lambda: policy(select=(drop_truncated, None)), "select=None is left out"),
        (lambda: policy(surrogate=bind(clipped, low="0.2", high=0.2)), "surrogate.low='0.2' is a"),
        (lambda: KL(estimator="k3", coef=0.1), r"KL estimator='k3' is a str; .* bind\(k3"),
        (lambda: KL(estimator=k3, coef="0.1"), "KL coef='0.1' is a str"),
        (lambda: ValueTerm(loss=0.5, coef=0.1), "ValueTerm loss=0.5 is a float"),
        (lambda: NLL(coef=1.0, reduce="averaged"), "NLL reduce='averaged' is a str"),
        (lambda: replace(dpo(), loss=None), "loss=None is left out"),
        (lambda: replace(dpo(), nll=1.0), "nll=1.0 is a float; it takes NLL or None"),
        (lambda: replace(kto(), loss="kto"), r"loss='kto' is a str; .* bind\(kto"),
        (lambda: RewardObjective(loss="ranked"), "loss='ranked' is a str"),
    ],
)
def test_a_part_of_another_kind_is_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: policy(surrogate=clipped),
            r"surrogate=clipped\(\) cannot be called with \(logp_BT, .*missing a required .*'low'; "
            r"it is clipped\(logp_BT, logp_old_BT, ratio_BT, advantage_BT, mask_BT, \*, low, high",
        ),
        (lambda: policy(surrogate=bind(clipped, low=0.2)), "argument: 'high'"),
        (lambda: policy(aggregate=constant_length), "aggregate=constant_length.* 'length'"),
        # a function for another place
        (lambda: policy(ratio=token_mean), r"ratio=token_mean\(\) cannot be called with \(logp_BT"),
        (lambda: policy(select=(drop_truncated, k3)), r"select=k3\(\) cannot be called"),
        (lambda: policy(advantage=gae, value=None), "reads a critic"),  # the nearer reason first
        (lambda: KL(estimator=k1, coef=0.1, controller=adaptive_coef), "controller=.*'target'"),
        (lambda: ValueTerm(loss=clipped_squared, coef=0.1), "ValueTerm loss=.*'clip'"),
        (lambda: NLL(coef=1.0, reduce=preference.log_ratio), "NLL reduce=.*length_BS"),
        (lambda: PreferenceObjective(loss=preference.dpo), "loss=.*'beta'"),
        (lambda: replace(dpo(), weigh=preference.log_ratio), "weigh=.*'length_BS'"),
        (lambda: replace(kto(), loss=preference_unpaired.kto), "loss=kto.*'beta'"),
        (lambda: RewardObjective(loss=squared), "loss=squared.*'mask_BT'"),
    ],
)
def test_a_part_that_cannot_be_called_is_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_a_statistic_that_an_unpaired_loss_does_not_read_is_refused():
    loss = bind(preference_unpaired.apo_zero_unpaired, beta=0.1)
    with pytest.raises(ConfigError, match="statistic is set, but loss=apo_zero_unpaired"):
        UnpairedObjective(loss=loss, statistic=preference_unpaired.mismatched_kl)


def test_a_list_of_parts_is_a_tuple_of_them():
    assert policy(select=[drop_truncated]) == policy(select=drop_truncated)


# --- numbers -------------------------------------------------------------------------------------

NUMPY = [np.float32, np.float16, np.float64, np.asarray, jnp.bfloat16.dtype.type]


@pytest.mark.parametrize("kind", NUMPY, ids=str)
def test_numbers_of_numpy_are_numbers(kind):
    assert plain_number(kind(0.5)) == 0.5
    check_number("x", kind(0.5), low=0, high=1)
    for wrong, why in ((NAN, "not a finite number"), (-0.5, "outside")):
        with pytest.raises(ConfigError, match=f"x=.*{why}"):
            check_number("x", kind(wrong), low=0)
        with pytest.raises(ConfigError, match=f"surrogate.low=.*{why}"):
            policy(surrogate=bind(clipped, low=kind(wrong), high=0.2))
        with pytest.raises(ConfigError, match=f"KL coef=.*{why}"):
            KL(estimator=k3, coef=kind(wrong))
    with pytest.raises(ConfigError, match="entropy="):
        policy(entropy=kind(NAN))
    with pytest.warns(ConfigWarning, match="loss_kl=k1"):
        policy(loss_kl=KL(estimator=k1, coef=kind(0.1)))


@pytest.mark.parametrize("other", [np.array([0.5]), np.bool_(True), np.str_("1"), None, 1j, "1"])
def test_what_is_no_number(other):
    assert plain_number(other) is None
    with pytest.raises(ConfigError, match="not a finite number"):
        check_number("x", other)


def test_a_number_out_of_range_in_a_controller_is_refused():
    controller = bind(adaptive_coef, target=0.0, horizon=1e4, batch=8)
    with pytest.raises(ConfigError, match=r"KL controller\.target=0\.0 is outside"):
        KL(estimator=k1, coef=0.1, controller=controller)


def test_records_are_put_together_again_with_anything_for_their_numbers():
    """As jax does, and who writes in_axes, or a tree of shapes, of an objective."""
    for objective in (grpo(), dpo(), kto(), RewardObjective(centre=0.1)):
        for leaf in (None, object(), jax.ShapeDtypeStruct((), jnp.float32), jnp.float32(NAN)):
            jax.tree.map(lambda _, leaf=leaf: leaf, objective)
