"""Messages and method paths of etcd's v3 API, from the committed descriptor set (source: ``protos/etcd/v3.proto``).

The messages live in a private descriptor pool. protobuf's default pool is shared by the whole process and refuses a
second description of etcd's API under the same file name, which is how two etcd libraries in one program break each
other.

protobuf is loaded at the first use of a message, not at import: it would make up a quarter of the agent's import time.
``wire.RangeRequest`` and so on are the message classes, by `__getattr__`.
"""

import threading
from collections.abc import Callable
from typing import Any

_lock = threading.Lock()
_pool: Any = None
_classes: dict[str, Any] = {}


def message(name: str) -> Any:
    """The message class ``edl.etcd.v3.<name>``.

    Raises:
        AttributeError: there is none.
    """
    try:
        return _classes[name]
    except KeyError:
        return _load(name)


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    return message(name)


class Method:
    """One RPC: its path on the wire, its answer, and whether repeating it is harmless.

    ``repeatable`` follows etcd's own client (client/v3/retry.go) for reads; grants carry an id chosen here, a repeated
    revoke finds nothing, so both are repeatable too. Puts, deletes and transactions are not.
    """

    __slots__ = ("_answer", "parse", "path", "repeatable")

    def __init__(self, path: str, answer: str, repeatable: bool) -> None:
        self.path = path
        self.repeatable = repeatable
        self._answer = answer
        self.parse: Callable[[bytes], Any] = self._first_parse
        """The answer's bytes to its message."""

    @property
    def answer(self) -> Any:
        """The message class of the answer."""
        return message(self._answer)

    def _first_parse(self, data: bytes) -> Any:
        self.parse = self.answer.FromString  # loaded now; from here on nothing stands in between
        return self.parse(data)


RANGE = Method("/etcdserverpb.KV/Range", "RangeResponse", True)
PUT = Method("/etcdserverpb.KV/Put", "PutResponse", False)
DELETE_RANGE = Method("/etcdserverpb.KV/DeleteRange", "DeleteRangeResponse", False)
TXN = Method("/etcdserverpb.KV/Txn", "TxnResponse", False)
LEASE_GRANT = Method("/etcdserverpb.Lease/LeaseGrant", "LeaseGrantResponse", True)
LEASE_REVOKE = Method("/etcdserverpb.Lease/LeaseRevoke", "LeaseRevokeResponse", True)
LEASE_TIME_TO_LIVE = Method("/etcdserverpb.Lease/LeaseTimeToLive", "LeaseTimeToLiveResponse", True)
AUTHENTICATE = Method("/etcdserverpb.Auth/Authenticate", "AuthenticateResponse", True)
STATUS = Method("/etcdserverpb.Maintenance/Status", "StatusResponse", True)
ALARM = Method("/etcdserverpb.Maintenance/Alarm", "AlarmResponse", True)

UNARY = (RANGE, PUT, DELETE_RANGE, TXN, LEASE_GRANT, LEASE_REVOKE, LEASE_TIME_TO_LIVE, AUTHENTICATE, STATUS, ALARM)
WATCH_PATH = "/etcdserverpb.Watch/Watch"
KEEPALIVE_PATH = "/etcdserverpb.Lease/LeaseKeepAlive"


def _load(name: str) -> Any:
    global _pool
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    with _lock:
        if _pool is None:
            from importlib.resources import files

            pool = descriptor_pool.DescriptorPool()
            data = files(__package__).joinpath("etcd_v3.binpb").read_bytes()
            for file in descriptor_pb2.FileDescriptorSet.FromString(data).file:
                pool.AddSerializedFile(file.SerializeToString())
            _pool = pool
        try:
            descriptor = _pool.FindMessageTypeByName(f"edl.etcd.v3.{name}")
        except KeyError:
            raise AttributeError(f"no message {name!r} in protos/etcd/v3.proto") from None
        found = _classes.setdefault(name, message_factory.GetMessageClass(descriptor))
        globals()[name] = found  # from now on `__getattr__` is not asked for it
        return found
