"""Messages and services of the sidecar's protocol, from the committed descriptor sets, in a private pool.

As for etcd's messages (`edl_agent.etcd.wire`): nothing is registered in protobuf's default pool, so that a program may
have its own idea of ``grpc.health.v1``.
"""

import functools
from importlib.resources import files
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

AGENT, HEALTH = "edl.agent.v1.AgentService", "grpc.health.v1.Health"
"""Full names of the services."""


@functools.cache
def _pool() -> Any:
    pool = descriptor_pool.DescriptorPool()
    for name in ("agent_v1.binpb", "health_v1.binpb"):
        data = files(__package__).joinpath(name).read_bytes()
        for file in descriptor_pb2.FileDescriptorSet.FromString(data).file:
            pool.AddSerializedFile(file.SerializeToString())
    return pool


@functools.cache
def message(name: str) -> Any:
    """The message class ``edl.agent.v1.<name>``. Raises KeyError where there is none."""
    return message_factory.GetMessageClass(_pool().FindMessageTypeByName(f"edl.agent.v1.{name}"))


def service(name: str) -> Any:
    """The descriptor of `AGENT` or `HEALTH`."""
    return _pool().FindServiceByName(name)


def enum_number(enum: str, name: str) -> int:
    """The number of an enum's value, such as ``("Role", "ROLE_PSERVER")``. Raises KeyError where there is none."""
    number: int = _pool().FindEnumTypeByName(f"edl.agent.v1.{enum}").values_by_name[name].number
    return number


def class_of(descriptor: Any) -> Any:
    """The message class of a descriptor of this pool."""
    return message_factory.GetMessageClass(descriptor)
