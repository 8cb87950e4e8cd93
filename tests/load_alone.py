"""Load a model folder in a process of its own and print what it took, as JSON.

`python load_alone.py FOLDER WARM_UP FSDP [ADDRESS COUNT INDEX]`: split FSDP ways, by one process or
as one of COUNT that meet at ADDRESS. WARM_UP is a small folder that is loaded before the measuring.
"""

import gc
import json
import sys
import threading
import time
from pathlib import Path

import jax
from jax.sharding import NamedSharding

from rlhf_jax.models import weights
from rlhf_jax.models.convert import load_pretrained
from rlhf_jax.parallel.mesh import MeshConfig, make_mesh
from rlhf_jax.parallel.sharding import spec_for


def anonymous_bytes() -> int:
    """Memory that is not a mapped file: the file's own pages may be dropped at any time."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split("RssAnon:")[1].split()[0])


class Peak(threading.Thread):
    """The most that was held from start to stop, looked at every half millisecond."""

    def __init__(self):
        super().__init__(daemon=True)
        self.base = self.value = anonymous_bytes()
        self.over = False

    def run(self):
        while not self.over:
            self.value = max(self.value, anonymous_bytes())
            time.sleep(0.0005)


class CountedView:
    count = 0

    def __init__(self, view):
        self.view, self.get_shape, self.get_dtype = view, view.get_shape, view.get_dtype

    def __getitem__(self, index):
        block = self.view[index]
        CountedView.count += block.size
        return block


def main(folder, warm_up, fsdp, address=None, count="1", index="0"):
    if address is not None:
        jax.distributed.initialize(address, int(count), int(index))
    mesh = make_mesh(MeshConfig(data=1, fsdp=int(fsdp)))

    def sharding(path, struct):
        return NamedSharding(mesh, spec_for("/".join(path), struct.shape, mesh))

    load_pretrained(warm_up, sharding=sharding)
    view = weights.Weights.view
    weights.Weights.view = lambda self, name: CountedView(view(self, name))
    gc.collect()
    peak = Peak()
    peak.start()
    _, params = load_pretrained(folder, sharding=sharding)
    peak.over = True
    peak.join()
    held = [sum(s.data.nbytes for s in x.addressable_shards) for x in jax.tree.leaves(params)]
    print(
        json.dumps(
            {
                "peak": peak.value - peak.base,
                "shards": sum(held),
                "largest": max(held),
                "read": CountedView.count,
                "whole": sum(x.size for x in jax.tree.leaves(params)),
                "replicated": sum(
                    x.size for x in jax.tree.leaves(params) if x.sharding.is_fully_replicated
                ),
            }
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
