"""Domain and protobuf agree."""

from __future__ import annotations

from mesh.membership import EVERY_CLASS, Instance, Load
from mesh.rpc.convert import instance_from_pb, instance_to_pb
from seedance.v2 import router_pb2


def test_instance_survives_the_wire() -> None:
    """What goes out comes back, load and its age included."""
    instance = Instance(
        "a", "h:1", ("m", "n"), "high-perf", 2.0, True, Load(1, 2, 3, 4, 5.5), "s", 4096
    )
    message = instance_to_pb(instance, load_age_ms=7)
    assert instance_from_pb(message) == instance
    assert message.load_age_ms == 7


def test_what_is_left_out_has_its_default() -> None:
    """No class means every class, no weight means 1, no report means an unknown load."""
    instance = instance_from_pb(router_pb2.Instance(id="a"))
    assert (instance.instance_class, instance.weight, instance.load) == (EVERY_CLASS, 1.0, None)
