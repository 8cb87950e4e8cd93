"""Small runs on one of the eight virtual devices; a folder to start from, written once."""

from functools import partial

import jax
import pytest
from toy import write_policy

from rlhf_jax.loops import answers, offline, online_preference, run, sampling, setup
from rlhf_jax.parallel.mesh import make_mesh


@pytest.fixture(scope="session")
def policy_folder(tmp_path_factory):
    """A tiny model as a Hugging Face folder. Read only."""
    return write_policy(tmp_path_factory.mktemp("models") / "policy")


@pytest.fixture(scope="module")
def one_device():
    """The loops see the first device alone: less to compile."""
    make_one = partial(make_mesh, devices=jax.devices()[:1])
    with pytest.MonkeyPatch.context() as patch:
        for module in (setup, offline, answers, sampling, online_preference):
            patch.setattr(module, "make_mesh", make_one)
        yield


@pytest.fixture
def no_curves(monkeypatch):
    """No picture at the end: half of the time of a run whose programs are compiled already."""
    monkeypatch.setattr(run, "draw_curves", lambda *args, **kw: None)
    monkeypatch.setattr(run, "report_finished", lambda folder: None)
