"""Eight virtual CPU devices, strict shapes, and the optional real model and data.

Set before jax starts: tests of sharding need several devices, and a formula that broadcasts by
accident must fail.
"""

import os

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from pathlib import Path

import jax
import pytest

jax.config.update("jax_numpy_rank_promotion", "raise")

SHARED = Path(os.environ.get("RLHF_JAX_SHARED", Path(__file__).parents[2] / "shared"))


@pytest.fixture(scope="session")
def stories_folder() -> Path:
    """Folder of the pretrained stories260K model (hf/ and golden.npz), or a skip."""
    folder = SHARED / "models" / "stories260K"
    if not folder.exists():
        pytest.skip(f"the stories260K model is not at {folder}; set RLHF_JAX_SHARED")
    return folder


@pytest.fixture(scope="session")
def stories_text() -> Path:
    """TinyStories validation text, or a skip."""
    file = SHARED / "data" / "tinystories_val" / "tinystories_val.txt"
    if not file.exists():
        pytest.skip(f"the TinyStories text is not at {file}; set RLHF_JAX_SHARED")
    return file
