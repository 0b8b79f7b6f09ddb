"""The agent of `edl`: a pserver's index that can be trusted, and everything a pserver or trainer asks of etcd."""

from edl_agent.client import ANY, EtcdClient
from edl_agent.errors import (
    AuthenticationFailed,
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
from edl_agent.live_session import Session
from edl_agent.prefix_watch import PrefixWatch
from edl_agent.session import SessionState, Slot
from edl_agent.watch_cursor import EventType, WatchEvent

__all__ = [
    "ANY",
    "AuthenticationFailed",
    "ClientClosed",
    "ClusterMismatch",
    "ConfigurationError",
    "DatasetInUse",
    "DeadlineExceeded",
    "EdlAgentError",
    "EtcdClient",
    "EventType",
    "ForkedClient",
    "InvalidDesiredCount",
    "KeyValue",
    "LeaseLost",
    "NoSpace",
    "PermissionDenied",
    "PrefixWatch",
    "ProtocolError",
    "RequestRefused",
    "RequestTooLarge",
    "Session",
    "SessionState",
    "Slot",
    "SlotTakenOver",
    "SlotWithdrawn",
    "SlotsFull",
    "TaskLost",
    "TlsFiles",
    "TooManyRequests",
    "Unavailable",
    "UnknownOutcome",
    "WatchCompacted",
    "WatchEnded",
    "WatchEvent",
    "WriteDeadlineExceeded",
]
