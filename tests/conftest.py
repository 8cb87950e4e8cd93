"""Eight virtual CPU devices, strict shapes, and the optional real model and data.

Set before jax starts: tests of sharding need several devices, a formula that broadcasts by
accident must fail, and a program compiled once serves all tests and the processes they start.
"""

import atexit
import os
import shutil
import tempfile
from importlib.metadata import version

# Nearly all the time of the tests is compiling. These two cut it to an eighth.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
# XLA dies of a flag that it does not know, so only where it is known to know it.
quick = "--xla_cpu_use_fusion_emitters=false" * version("jaxlib").startswith("0.10.")
os.environ.setdefault("XLA_FLAGS", f"--xla_force_host_platform_device_count=8 {quick}")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp(prefix="rlhf_jax_tests_")
    atexit.register(shutil.rmtree, os.environ["JAX_COMPILATION_CACHE_DIR"], ignore_errors=True)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")

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
