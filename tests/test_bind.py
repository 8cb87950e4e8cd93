"""`bind`: compared by value, printed as a call, traced by its numbers, pickled."""

import functools
import pickle

import jax
import pytest

from rlhf_jax.bind import Bound, bind


def scale(x, *, by=1.0, times=1, inner=None):
    for _ in range(times):
        x = x * by
    return x if inner is None else inner(x)


def shift(x, *, by):
    return x + by


def test_equality_and_hash_by_function_and_arguments():
    assert bind(scale, by=2.0, times=3) == bind(scale, times=3, by=2.0)
    assert hash(bind(scale, by=2.0)) == hash(bind(scale, by=2.0))
    assert bind(scale, by=2.0) != bind(scale, by=2.5)
    assert bind(scale, by=2.0) != bind(shift, by=2.0)


def test_call_and_late_arguments():
    assert bind(scale, by=2.0)(3.0) == 6.0
    assert bind(scale, by=2.0)(3.0, by=5.0) == 15.0
    assert bind(scale, by=2.0, inner=bind(shift, by=1.0))(3.0) == 7.0


def test_repr_is_the_log_line():
    assert repr(bind(scale, times=2, by=0.5)) == "scale(by=0.5, times=2)"
    assert repr(bind(scale, inner=bind(shift, by=1.0))) == "scale(inner=shift(by=1.0))"
    assert repr(bind(scale, inner=shift)) == "scale(inner=shift)"  # no address


def test_rebinding_extends_and_replaces():
    first = bind(scale, by=2.0)
    assert bind(first, times=2) == bind(scale, by=2.0, times=2) == first.replace(times=2)
    assert first == bind(scale, by=2.0)  # unchanged
    with pytest.raises(AttributeError, match="frozen"):
        first.kw = {}


def test_floats_are_leaves_and_the_rest_is_static():
    term = bind(scale, by=2.0, times=3, inner=bind(shift, by=1.0))
    assert sorted(jax.tree.leaves(term)) == [1.0, 2.0]
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(term)]
    assert sorted(paths) == [".by", ".inner.by"]
    assert jax.tree.map(lambda x: x, term) == term


def test_a_new_number_does_not_retrace_and_a_new_function_does():
    traces = []

    @jax.jit
    def run(term, x):
        traces.append(term)
        return term(x)

    assert [float(run(bind(scale, by=b), 3.0)) for b in (1.0, 2.0, 4.0)] == [3.0, 6.0, 12.0]
    assert len(traces) == 1
    run(bind(scale, by=1.0, times=2), 3.0)  # an int is static
    run(bind(shift, by=1.0), 3.0)
    assert len(traces) == 3


def test_numbers_can_be_swept_and_differentiated():
    swept = jax.vmap(lambda by: bind(scale, by=by)(3.0))(jax.numpy.array([1.0, 2.0]))
    assert swept.tolist() == [3.0, 6.0]
    gradient = jax.grad(lambda term: term(3.0))(bind(scale, by=2.0))
    assert isinstance(gradient, Bound) and gradient.kw["by"] == 3.0


def test_survives_pickling():
    term = bind(scale, by=2.0, inner=bind(shift, by=1.0))
    assert pickle.loads(pickle.dumps(term)) == term


@pytest.mark.parametrize("fn", [lambda x: x, functools.partial(scale, by=2.0)])
def test_what_compares_by_identity_is_refused(fn):
    with pytest.raises(TypeError, match="module-level"):
        bind(fn)


def test_unknown_argument_is_refused():
    with pytest.raises(TypeError, match="takes no"):
        bind(scale, bye=2.0)
    with pytest.raises(TypeError, match="takes no"):
        bind(scale, by=2.0).replace(bye=1.0)
