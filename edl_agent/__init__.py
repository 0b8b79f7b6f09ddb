"""The agent of `edl`: a pserver's index that can be trusted, and everything a pserver or trainer asks of etcd."""

from importlib import import_module
from typing import TYPE_CHECKING

from edl_agent.client import EtcdClient
from edl_agent.errors import (
    AuthenticationFailed,
    CheckpointCorrupt,
    CheckpointError,
    CheckpointStorageDenied,
    CheckpointStorageFull,
    ClientClosed,
    ClusterMismatch,
    ConfigurationError,
    DatasetInUse,
    DeadlineExceeded,
    EdlAgentError,
    ForkedClient,
    InvalidDesiredCount,
    LeaseLost,
    NoSpace,
    PermissionDenied,
    ProtocolError,
    RequestRefused,
    RequestTooLarge,
    SlotsFull,
    SlotTakenOver,
    SlotWithdrawn,
    TaskLost,
    TooManyRequests,
    Unavailable,
    UnknownOutcome,
    WatchCompacted,
    WatchEnded,
    WriteDeadlineExceeded,
)
from edl_agent.etcd.identity import TlsFiles
from edl_agent.etcd.kv import KeyValue
from edl_agent.key_access import ANY
from edl_agent.live_session import Session
from edl_agent.prefix_watch import PrefixWatch
from edl_agent.session import SessionState, Slot
from edl_agent.watch_cursor import EventType, WatchEvent

if TYPE_CHECKING:
    from edl_agent.drain import Drain
    from edl_agent.drain_request import DrainRequest
    from edl_agent.initialisation import Initialisation
    from edl_agent.master_address import put_master_address, watch_master_address
    from edl_agent.membership import Members, Membership, Pserver
    from edl_agent.report import Report
    from edl_agent.reporting import Reporter

_LOADED_WHEN_USED = {
    "Drain": "drain",
    "DrainRequest": "drain_request",
    "Initialisation": "initialisation",
    "Members": "membership",
    "Membership": "membership",
    "Pserver": "membership",
    "Report": "report",
    "Reporter": "reporting",
    "put_master_address": "master_address",
    "watch_master_address": "master_address",
}
"""Public names that a program may do without -> their module: they cost no time at import."""


def __getattr__(name: str) -> object:
    if name not in _LOADED_WHEN_USED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(f"{__name__}.{_LOADED_WHEN_USED[name]}"), name)
    globals()[name] = found
    return found


__all__ = [
    "ANY",
    "AuthenticationFailed",
    "CheckpointCorrupt",
    "CheckpointError",
    "CheckpointStorageDenied",
    "CheckpointStorageFull",
    "ClientClosed",
    "ClusterMismatch",
    "ConfigurationError",
    "DatasetInUse",
    "DeadlineExceeded",
    "Drain",
    "DrainRequest",
    "EdlAgentError",
    "EtcdClient",
    "EventType",
    "ForkedClient",
    "Initialisation",
    "InvalidDesiredCount",
    "KeyValue",
    "LeaseLost",
    "Members",
    "Membership",
    "NoSpace",
    "PermissionDenied",
    "PrefixWatch",
    "ProtocolError",
    "Pserver",
    "Report",
    "Reporter",
    "RequestRefused",
    "RequestTooLarge",
    "Session",
    "SessionState",
    "Slot",
    "SlotsFull",
    "SlotTakenOver",
    "SlotWithdrawn",
    "TaskLost",
    "TlsFiles",
    "TooManyRequests",
    "Unavailable",
    "UnknownOutcome",
    "WatchCompacted",
    "WatchEnded",
    "WatchEvent",
    "WriteDeadlineExceeded",
    "put_master_address",
    "watch_master_address",
]
