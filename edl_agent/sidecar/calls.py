"""Every call's way in and out: strict requests, deadlines, a bounded number of waiting calls, errors with details."""

import contextlib
import logging
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from edl_agent import errors
from edl_agent.sidecar import wire
from edl_agent.sidecar.statuses import Refusal, judge

_log = logging.getLogger(__name__)

WORKERS = 64
"""Threads; also the most calls at once: gRPC answers further ones RESOURCE_EXHAUSTED."""

WAITING = 40
"""Streams and calls that wait, at once. The threads left over answer the quick ones."""

QUICK = 5.0
"""Seconds for a call that does not wait, where the client sets no deadline."""

LONGEST = 600.0
"""Seconds for a call that waits, whatever the client's deadline."""

_TEXT = 512
"""Characters of an error's text, so that it fits into the metadata."""


class Malformed:
    """Stands for a request that could not be read."""

    def __init__(self, why: str) -> None:
        self.why = why


class Call:
    """One call under way.

    Attributes:
        context: gRPC's.
    """

    def __init__(self, context: grpc.ServicerContext) -> None:
        self.context: Any = context

    def seconds(self, most: float = QUICK) -> float:
        """Time left: the client's deadline, at most ``most``.

        Raises:
            DeadlineExceeded: none.
        """
        given: float | None = self.context.time_remaining()
        left = most if given is None else min(given, most)
        if left <= 0:
            raise errors.DeadlineExceeded("the call's deadline has passed")
        return left

    @property
    def alive(self) -> bool:
        """Whether anybody still waits for the answer."""
        return bool(self.context.is_active())

    def on_end(self, callback: Callable[[], None]) -> None:
        """Call it when the call has ended, on one of gRPC's threads; at once if it has already."""
        if not self.context.add_callback(callback):
            callback()


class Places:
    """A bounded number of calls that may wait."""

    def __init__(self, places: int = WAITING) -> None:
        self._places = places
        self._free = threading.Semaphore(places)

    @contextlib.contextmanager
    def one(self) -> Iterator[None]:
        """Take a place.

        Raises:
            Refusal: all are taken.
        """
        if not self._free.acquire(blocking=False):
            raise Refusal("TOO_MANY_CALLS", f"{self._places} streams or waiting calls are open already")
        try:
            yield
        finally:
            self._free.release()


def reader(kind: Any) -> Callable[[bytes], Any]:
    """Bytes to a request of this class, or to `Malformed`. Never raises."""
    parse = kind.FromString

    def read(data: bytes) -> Any:
        if not data:
            return kind()
        try:
            found = parse(data)
        except (DecodeError, ValueError, RecursionError) as error:
            return Malformed(f"the bytes are no {kind.DESCRIPTOR.name}: {error}")
        unknown = UnknownFieldSet(found)
        if len(unknown):
            return Malformed(f"{kind.DESCRIPTOR.name} has no field {unknown[0].field_number} in this version")
        return found

    return read


def unary(handler: Callable[[Any, Call], Any]) -> Callable[[Any, grpc.ServicerContext], Any]:
    """A handler as gRPC wants it; what it raises becomes a status."""

    def answer(request: Any, context: grpc.ServicerContext) -> Any:
        try:
            if type(request) is Malformed:
                raise Refusal("MALFORMED_REQUEST", request.why)
            return handler(request, Call(context))
        except Exception as error:
            _refuse(context, error)

    return answer


def streaming(handler: Callable[[Any, Call], Iterator[Any]], places: Places) -> Callable[..., Iterator[Any]]:
    """The same for a stream of answers, which takes a place."""

    def answers(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        try:
            if type(request) is Malformed:
                raise Refusal("MALFORMED_REQUEST", request.why)
            with places.one():
                yield from handler(request, Call(context))
        except Exception as error:
            _refuse(context, error)

    return answers


def handlers(name: str, service: object, places: Places) -> Any:
    """The gRPC handlers of a service: each method of the description by the method of this name in snake case."""
    table = {}
    for method in wire.service(name).methods:
        own = getattr(service, "".join(f"_{one.lower()}" if one.isupper() else one for one in method.name)[1:])
        read = reader(wire.class_of(method.input_type))
        write = wire.class_of(method.output_type).SerializeToString
        if method.server_streaming:
            table[method.name] = grpc.unary_stream_rpc_method_handler(streaming(own, places), read, write)
        else:
            table[method.name] = grpc.unary_unary_rpc_method_handler(unary(own), read, write)
    return grpc.method_handlers_generic_handler(name, table)


def _forget(error: BaseException | None) -> None:
    """Let go of what the frames of a dealt-with error hold: their cycles would keep large requests long."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error.__traceback__, following = None, error.__cause__ or error.__context__
        error.__cause__ = error.__context__ = None
        error = following


def _refuse(context: grpc.ServicerContext, error: Exception) -> None:
    """End the call with the error's status and details. Always raises."""
    status = judge(error)
    if status.reason == "ERROR_REASON_INTERNAL":
        _log.exception("A call failed")
        text = f"a fault of the sidecar: {type(error).__name__}"
    else:
        text = str(error)[:_TEXT]
    code = grpc.StatusCode[status.code]
    detail = wire.message("ErrorDetail")(
        reason=wire.enum_number("ErrorReason", status.reason),
        may_have_been_applied=status.may_have_been_applied,
        retryable=status.retryable,
    )
    rich = wire.message("ErrorStatus")(code=code.value[0], message=text)
    rich.details.add(type_url="type.googleapis.com/edl.agent.v1.ErrorDetail", value=detail.SerializeToString())
    _forget(error)
    if context.is_active():
        context.set_trailing_metadata((("grpc-status-details-bin", rich.SerializeToString()),))
    context.abort(code, text)
