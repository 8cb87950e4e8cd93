"""Loading in processes of their own: how much memory it takes, and what each of several reads."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from rlhf_jax.models.families import FAMILIES
from rlhf_jax.models.options import axis_sizes, decoder_config

SCRIPT = Path(__file__).parents[1] / "load_alone.py"


def write_checkpoint(folder, dtype, **sizes):
    raw = {"model_type": "phi3", "num_attention_heads": 4, "num_hidden_layers": 2, **sizes}
    family = FAMILIES["phi3"]
    config = decoder_config(family, raw, "raw", None)
    axes = axis_sizes(config, config.vocab_size)
    tensors = {
        name: np.ones(rule.file_shape(axes), dtype)
        for rule in family.rules(config)
        for name in rule.names(config.num_layers)
    }
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(raw))
    return folder


@pytest.fixture(scope="module")
def warm_up(tmp_path_factory):
    folder = tmp_path_factory.mktemp("warm") / "up"
    return write_checkpoint(folder, np.float32, vocab_size=8, hidden_size=16, intermediate_size=8)


def start(*arguments, devices):
    environment = {
        **os.environ,
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        "MALLOC_MMAP_THRESHOLD_": "65536",  # what the allocator keeps for reuse is not the load's
        "PYTHONPATH": str(SCRIPT.parents[1]),
    }
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env=environment, **pipes)


def finish(process):
    out, error = process.communicate(timeout=120)
    assert process.returncode == 0, error
    return json.loads(out.splitlines()[-1])


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_peak_memory_is_the_shards_and_one_parameter(tmp_path, warm_up):
    # 25 MB of embedding and as much of head, in float32; half of it in the file
    sizes = dict(vocab_size=12000, hidden_size=512, intermediate_size=1024)
    folder = write_checkpoint(tmp_path / "big", ml_dtypes.bfloat16, **sizes)
    took = finish(start(folder, warm_up, 4, devices=4))
    assert took["largest"] == 4 * 12000 * 512
    assert took["read"] == took["whole"]
    assert took["peak"] < took["shards"] + 1.3 * took["largest"]


def test_two_processes_read_their_halves(tmp_path, warm_up):
    sizes = dict(vocab_size=64, hidden_size=32, intermediate_size=48)
    folder = write_checkpoint(tmp_path / "small", np.float16, **sizes)
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    processes = [start(folder, warm_up, 4, address, 2, n, devices=2) for n in range(2)]
    for took in map(finish, processes):
        split = took["whole"] - took["replicated"]
        assert took["replicated"] == 5 * 32  # the norms
        assert took["read"] == took["replicated"] + split // 2
