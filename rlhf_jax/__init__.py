"""Reinforcement learning from human feedback in JAX.

Pure functional losses, jit-compiled into sharded train steps: SFT, PPO with a critic, GRPO and
its relatives. Read `experiments/quickstart.py` first, then follow the imports downwards.
Nothing happens at import; import the module you need (`from rlhf_jax.losses.kl import k3`).
"""

__version__ = "0.1.0"
