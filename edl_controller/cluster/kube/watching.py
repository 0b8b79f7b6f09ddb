"""Lists in pages, and watches that end when they should: by the stop, by silence, by damage.

- A list whose pages have become too old while they were read is read whole, at once (as client-go does).
- A watch asks for bookmarks and for an end at the server, at a random moment, so that not all end together.
- A read that waits cannot look whether it is to stop: one thread for all watches does, and ends their reading.
- Half a line at the end, text that is no JSON and errors of the server end a watch as `Unavailable`; the caller goes on
  from the last version that it was given.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar, cast, get_args

import msgspec
import urllib3

from edl_controller.api.kinds import ApiObject
from edl_controller.cluster.kube.answers import Status, error_of, is_version_too_large, read_status
from edl_controller.cluster.kube.decode import Decoder, Line, Page
from edl_controller.cluster.kube.transport import Response, Transport
from edl_controller.cluster.port import Change, ChangeType, Listing, Stop
from edl_controller.errors import ClusterError, Gone, Unavailable

T = TypeVar("T", bound=ApiObject)

PAGE = 500
"""Objects of one page."""
SERVER_ENDS = (240, 300)
"""Seconds after which the server is asked to end a watch."""
SILENCE = 90.0
"""Seconds without a byte after which a watch is given up: the server sends a bookmark about every minute."""
STOP_SEEN = 0.4
"""Seconds within which a waiting watch is stopped."""
LONGEST_LINE = 64 << 20
"""Bytes; no object is so big."""

_TYPES = frozenset(get_args(ChangeType))


def list_all(transport: Transport, path: str, query: dict[str, str], decoder: Decoder[T]) -> Listing[T]:
    """Return all objects below a path at one moment.

    Raises:
        ClusterError: the server refused, or does not answer.
    """
    items: list[T] = []
    more = ""
    while True:
        paging = {"limit": str(PAGE), **({"continue": more} if more else {})}
        try:
            page = _page(transport, path, query | paging, decoder)
        except Gone:
            if not more:
                raise
            page, items = _page(transport, path, query, decoder), []
        items += page.items
        more = page.more
        if not more:
            return Listing(tuple(items), page.resource_version)


def _page(transport: Transport, path: str, query: dict[str, str], decoder: Decoder[T]) -> Page[T]:
    data = transport.request("GET", path, query=query)
    try:
        return decoder.page(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Unavailable(f"GET {path}: {len(data)} bytes that are no list: {error}") from error


def watch(
    transport: Transport,
    path: str,
    resource_version: str,
    decoder: Decoder[T],
    stop: Stop,
    stopper: Stopper,
    *,
    silence: float,
    chance: Callable[[], float] = random.random,
) -> Iterator[Change[T]]:
    """Yield the changes after a version until ``stop``, or until the server ends the watch; first a bookmark of it.

    Raises:
        Gone: list again.
        Unavailable: the watch was lost.
    """
    first, last = SERVER_ENDS
    query = {
        "watch": "true",
        "allowWatchBookmarks": "true",
        "resourceVersion": resource_version,
        "timeoutSeconds": str(round(first + (last - first) * chance())),
    }
    try:
        response = transport.stream(path, query=query, silence=silence)
    except Unavailable as error:
        # A server that came back from a backup may never get as far; a new list tells what is.
        if "Too large resource version" in str(error):
            raise Gone(str(error)) from error
        raise
    try:
        with stopper.watching(response, stop):
            # The server has answered: on a quiet cluster its own bookmarks come too seldom to know that it is there.
            yield Change("BOOKMARK", None, resource_version)
            for data in _lines(response, path, stop):
                line = _decoded(decoder, data, path)
                if line.type == "ERROR":
                    raise _error(line.raw, path)
                if line.type in _TYPES:
                    yield Change(cast(ChangeType, line.type), line.obj, line.resource_version)
                if stop.is_set():
                    return
    finally:
        response.close()


def _lines(response: Response, path: str, stop: Stop) -> Iterator[bytes]:
    rest = b""
    try:
        while part := response.read1(1 << 16):
            *lines, rest = (rest + part).split(b"\n")
            if len(rest) > LONGEST_LINE:
                raise Unavailable(f"watch {path}: a line without an end")
            yield from (line for line in lines if line and not line.isspace())
    except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
        if stop.is_set():
            return
        # What urllib3 says of it contains addresses of objects.
        raise Unavailable(f"watch {path}: lost: {type(error).__name__}") from error
    if rest.strip() and not stop.is_set():
        raise Unavailable(f"watch {path}: ended within a line")


def _decoded(decoder: Decoder[T], data: bytes, path: str) -> Line[T]:
    try:
        line = decoder.line(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Unavailable(f"watch {path}: a damaged line of {len(data)} bytes") from error
    # Damage inside of what is not read is not seen by the decoder; nothing without a name is an object.
    if line.obj is not None and not (line.obj.metadata.name and line.resource_version) and line.type in _TYPES:
        raise Unavailable(f"watch {path}: an object without a name or version")
    return line


def _error(raw: bytes, path: str) -> ClusterError:
    status = read_status(raw) or Status()
    if is_version_too_large(status):
        return Gone(status.message)
    error = error_of(status.code or 500, raw, asked=f"watch {path}", secret="/secrets" in path)
    return error if isinstance(error, (Gone, Unavailable)) else Unavailable(str(error))


class Stopper:
    """Ends the reading of watches whose stop is set: one thread, while there are watches. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watches: dict[int, tuple[Response, Stop]] = {}
        self._running = False

    @contextlib.contextmanager
    def watching(self, response: Response, stop: Stop) -> Iterator[None]:
        """Look after a watch inside the block."""
        with self._lock:
            self._watches[id(response)] = (response, stop)
            if not self._running:
                self._running = True
                threading.Thread(target=self._run, name="edl-kube-stopper", daemon=True).start()
        try:
            yield
        finally:
            with self._lock:
                del self._watches[id(response)]

    def close(self) -> None:
        """End all watches there are."""
        with self._lock:
            for response, _ in self._watches.values():
                _shut(response)

    def _run(self) -> None:
        pause = threading.Event()
        while True:
            with self._lock:
                if not self._watches:
                    self._running = False
                    return
                for response, stop in self._watches.values():
                    if stop.is_set():
                        _shut(response)
            pause.wait(STOP_SEEN)


def _shut(response: Response) -> None:
    with contextlib.suppress(OSError, RuntimeError, ValueError):
        response.shutdown()
