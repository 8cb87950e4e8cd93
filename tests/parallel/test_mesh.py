"""The mesh: shapes that fit, the nearest ones where they do not, axis types."""

import jax
import pytest
from jax.sharding import AxisType

from rlhf_jax.errors import ConfigError
from rlhf_jax.parallel.mesh import AXES, MeshConfig, make_mesh, resolve_shape


def test_rest_goes_to_the_free_axis():
    assert resolve_shape(MeshConfig(tensor=2), 8) == (4, 1, 2)
    assert resolve_shape(MeshConfig(data=1, fsdp=-1, tensor=2), 8) == (1, 4, 2)
    assert resolve_shape(MeshConfig(), 1) == (1, 1, 1)
    assert resolve_shape(MeshConfig(data=2, fsdp=2, tensor=2), 8) == (2, 2, 2)


def test_axes_are_named_in_order_and_of_type_auto():
    mesh = make_mesh(MeshConfig(data=1, fsdp=4, tensor=2))
    assert dict(mesh.shape) == {"data": 1, "fsdp": 4, "tensor": 2}
    assert mesh.axis_names == AXES
    assert mesh.axis_types == (AxisType.Auto,) * 3


def test_mesh_over_some_devices():
    assert make_mesh(MeshConfig(), jax.devices()[:2]).devices.shape == (2, 1, 1)


@pytest.mark.parametrize(
    "cfg, devices, near",
    [
        (MeshConfig(data=3), 4, "(4, 1, 1)"),
        (MeshConfig(data=1), 2, "(2, 1, 1)"),
        (MeshConfig(data=16), 8, "(8, 1, 1)"),
        (MeshConfig(tensor=3), 8, "(2, 1, 4)"),
    ],
)
def test_a_product_that_misses_names_the_nearest(cfg, devices, near):
    with pytest.raises(ConfigError) as error:
        resolve_shape(cfg, devices)
    assert near in str(error.value)
    assert f"{devices} devices" in str(error.value)


@pytest.mark.parametrize("size", [0, -2, 1.5, True, "2"])
def test_sizes_that_are_no_device_count(size):
    with pytest.raises(ConfigError, match=r"mesh\.fsdp"):
        MeshConfig(fsdp=size)


def test_two_free_axes():
    with pytest.raises(ConfigError, match=r"mesh\.data and mesh\.tensor"):
        MeshConfig(tensor=-1)
