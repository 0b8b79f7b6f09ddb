"""Messages and method paths of etcd's v3 API, from the committed descriptor set (source: ``protos/etcd/v3.proto``).

The messages live in a private descriptor pool. protobuf's default pool is shared by the whole process and refuses a
second description of etcd's API under the same file name, which is how two etcd libraries in one program break each
other.
"""

from importlib.resources import files
from typing import Any, NamedTuple

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_POOL = descriptor_pool.DescriptorPool()
_FILES = descriptor_pb2.FileDescriptorSet.FromString(files(__package__).joinpath("etcd_v3.binpb").read_bytes())
for _file in _FILES.file:
    _POOL.AddSerializedFile(_file.SerializeToString())


def message(name: str) -> Any:
    """The message class ``edl.etcd.v3.<name>``."""
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"edl.etcd.v3.{name}"))


class Method(NamedTuple):
    """One RPC: its path on the wire, the class of its answer, and whether repeating it is harmless.

    ``repeatable`` follows etcd's own client (client/v3/retry.go) for reads; grants carry an id chosen here, a repeated
    revoke finds nothing, so both are repeatable too. Puts, deletes and transactions are not.
    """

    path: str
    answer: Any
    repeatable: bool


RangeRequest = message("RangeRequest")
PutRequest = message("PutRequest")
DeleteRangeRequest = message("DeleteRangeRequest")
TxnRequest = message("TxnRequest")
Compare = message("Compare")
RequestOp = message("RequestOp")
WatchRequest = message("WatchRequest")
WatchResponse = message("WatchResponse")
LeaseGrantRequest = message("LeaseGrantRequest")
LeaseRevokeRequest = message("LeaseRevokeRequest")
LeaseKeepAliveRequest = message("LeaseKeepAliveRequest")
LeaseKeepAliveResponse = message("LeaseKeepAliveResponse")
LeaseTimeToLiveRequest = message("LeaseTimeToLiveRequest")
AuthenticateRequest = message("AuthenticateRequest")
StatusRequest = message("StatusRequest")
AlarmRequest = message("AlarmRequest")

RANGE = Method("/etcdserverpb.KV/Range", message("RangeResponse"), True)
PUT = Method("/etcdserverpb.KV/Put", message("PutResponse"), False)
DELETE_RANGE = Method("/etcdserverpb.KV/DeleteRange", message("DeleteRangeResponse"), False)
TXN = Method("/etcdserverpb.KV/Txn", message("TxnResponse"), False)
LEASE_GRANT = Method("/etcdserverpb.Lease/LeaseGrant", message("LeaseGrantResponse"), True)
LEASE_REVOKE = Method("/etcdserverpb.Lease/LeaseRevoke", message("LeaseRevokeResponse"), True)
LEASE_TIME_TO_LIVE = Method("/etcdserverpb.Lease/LeaseTimeToLive", message("LeaseTimeToLiveResponse"), True)
AUTHENTICATE = Method("/etcdserverpb.Auth/Authenticate", message("AuthenticateResponse"), True)
STATUS = Method("/etcdserverpb.Maintenance/Status", message("StatusResponse"), True)
ALARM = Method("/etcdserverpb.Maintenance/Alarm", message("AlarmResponse"), True)

UNARY = (RANGE, PUT, DELETE_RANGE, TXN, LEASE_GRANT, LEASE_REVOKE, LEASE_TIME_TO_LIVE, AUTHENTICATE, STATUS, ALARM)
WATCH_PATH = "/etcdserverpb.Watch/Watch"
KEEPALIVE_PATH = "/etcdserverpb.Lease/LeaseKeepAlive"
