"""Asking a sidecar to drain: the other end of a preStop hook."""

import time
from typing import Any

import grpc

from edl_agent.errors import Unavailable
from edl_agent.sidecar import wire


def drain_through(socket: str, *, reason: str, seconds: float, timeout: float) -> bool:
    """Ask the program behind this sidecar to go, and wait until it has.

    Args:
        socket: path of the sidecar's.
        reason: for people.
        seconds: that the program has.
        timeout: seconds to wait for its end.

    Returns:
        Whether no program is attached any more (or there was none).

    Raises:
        Unavailable: nobody listens, or not to us.
    """
    end = time.monotonic() + timeout
    start, watch = (wire.service(wire.AGENT).methods_by_name[name] for name in ("StartDrain", "WatchDrain"))
    with grpc.insecure_channel(f"unix:{socket}") as channel:
        ask: Any = channel.unary_unary(
            f"/{wire.AGENT}/StartDrain",
            lambda request: request.SerializeToString(),
            wire.class_of(start.output_type).FromString,
        )
        follow: Any = channel.unary_stream(
            f"/{wire.AGENT}/WatchDrain",
            lambda request: request.SerializeToString(),
            wire.class_of(watch.output_type).FromString,
        )
        try:
            ask(wire.class_of(start.input_type)(reason=reason, seconds=seconds), timeout=min(5.0, timeout))
        except grpc.RpcError as error:
            raise Unavailable(f"no drain through {socket}: {_text(error)}") from error
        try:
            for news in follow(wire.class_of(watch.input_type)(), timeout=max(0.0, end - time.monotonic())):
                if not news.attached:
                    return True
        except grpc.RpcError as error:
            failed: Any = error
            # Whatever else it is: the sidecar has ended, and it waits for its program.
            return bool(failed.code() is not grpc.StatusCode.DEADLINE_EXCEEDED)
    return True


def _text(error: grpc.RpcError) -> str:
    failed: Any = error
    return str(failed.details() or failed.code().name)
