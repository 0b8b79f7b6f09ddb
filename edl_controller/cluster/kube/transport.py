"""Requests to the API server: raw paths and bytes over the official client's pooled connections; refusals as errors.

Every request has a deadline, for connecting and in all. Nothing is repeated but what was refused for old credentials,
once. Bodies are never logged.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol
from urllib.parse import urlencode

import urllib3
from kubernetes.client.rest import RESTClientObject

from edl_controller.cluster.kube.answers import error_of
from edl_controller.cluster.kube.credentials import Access, Credentials
from edl_controller.errors import Unavailable

CONNECT_WITHIN = 5.0
"""Seconds to a connection."""
ANSWER_WITHIN = 15.0
"""Seconds to the whole answer; twice that in the worst case, of one that trickles."""
CONNECTIONS = 64
"""That are kept open when idle."""

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"

Response = urllib3.BaseHTTPResponse


class Calls(Protocol):
    """Is told of every request."""

    def called(self, method: str, status: int) -> None:
        """One was answered; 0: it was not."""
        ...


class NoCalls:
    """Counts nothing."""

    def called(self, method: str, status: int) -> None:
        """Ignore it."""


class Transport:
    """One API server. Thread-safe.

    Args:
        credentials: where it is, and who we are.
        answer_within: seconds to the whole answer.
        clock: monotonic seconds.
        before_write: asked at the last moment, when all but the body of a write is sent; what it raises ends the
            request undone. So neither a slow connection nor new credentials make a write late.
        calls: who counts.
    """

    def __init__(
        self,
        credentials: Credentials,
        *,
        answer_within: float = ANSWER_WITHIN,
        clock: Callable[[], float] = time.monotonic,
        before_write: Callable[[], None] | None = None,
        calls: Calls | None = None,
    ) -> None:
        self._credentials, self._answer_within, self._clock = credentials, answer_within, clock
        self._before_write, self._calls = before_write, calls or NoCalls()
        self._lock = threading.Lock()
        self._pool: urllib3.PoolManager | None = None
        self._identity = ""
        self._headers = {"Accept": JSON, "User-Agent": f"edl-controller/{importlib.metadata.version('edl')}"}

    def close(self) -> None:
        """Drop idle connections. Idempotent; the next request makes new ones."""
        with self._lock:
            pool, self._pool, self._identity = self._pool, None, ""
        if pool is not None:
            pool.clear()

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = JSON,
    ) -> bytes:
        """Send a request and return the body of the answer.

        Raises:
            ClusterError: what the server refused, or (`Unavailable`) that nobody knows what it did.
        """
        deadline = self._clock() + self._answer_within
        response = self._send(method, path, query, body, content_type, deadline, None)
        return self._read(response, deadline, f"{method} {path}")

    def stream(self, path: str, *, query: Mapping[str, str], silence: float) -> Response:
        """Open an endless answer. Close it; a read that finds nothing for ``silence`` seconds fails.

        Raises:
            ClusterError: the server refused, or does not answer.
        """
        return self._send("GET", path, query, None, JSON, self._clock() + self._answer_within, silence)

    def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: bytes | None,
        content_type: str,
        deadline: float,
        silence: float | None,
    ) -> Response:
        asked = f"{method} {path}"
        target = f"{path}?{urlencode(query)}" if query else path
        access = self._credentials.access()
        for again in (True, False):
            headers = {**self._headers, **access.headers}
            if body is not None:
                headers |= {"Content-Type": content_type, "Content-Length": str(len(body))}
            left = max(0.1, deadline - self._clock())
            timeout = urllib3.Timeout(connect=min(CONNECT_WITHIN, left), read=left)
            try:
                response: Response = self._connections(access).request(
                    method,
                    access.configuration.host + target,
                    body=body if body is None or self._before_write is None else _asked(self._before_write, body),
                    headers=headers,
                    timeout=timeout,
                    preload_content=False,
                )
            except (urllib3.exceptions.HTTPError, OSError) as error:
                self._calls.called(method, 0)
                raise Unavailable(f"{asked}: no answer: {_cause(error)}") from error
            self._calls.called(method, response.status)
            if response.status < 300:
                if silence is not None:
                    _wait_at_most(response, silence)
                return response
            # A redirect is refused like anything else: credentials are for one server.
            data = self._read(response, deadline, asked, drain=True)
            if response.status == 401 and again:
                access = self._credentials.access(refused=access.number)
                continue
            break
        raise error_of(
            response.status,
            data,
            asked=asked,
            retry_after=response.headers.get("Retry-After"),
            secret="/secrets" in path,
        )

    def _read(self, response: Response, deadline: float, asked: str, *, drain: bool = False) -> bytes:
        """Read the whole answer, or fail by the deadline; ``drain``: of a refusal what comes will do."""
        parts = []
        try:
            while part := response.read1(1 << 20):
                parts.append(part)
                if self._clock() >= deadline:
                    raise TimeoutError(f"the answer was not complete within {self._answer_within:g} s")
        except (urllib3.exceptions.HTTPError, OSError) as error:
            response.close()
            if not drain:
                raise Unavailable(f"{asked}: the answer broke off: {_cause(error)}") from error
        else:
            response.release_conn()
        return b"".join(parts)

    def _connections(self, access: Access) -> urllib3.PoolManager:
        with self._lock:
            if self._pool is None or self._identity != access.identity:
                old = self._pool
                access.configuration.retries = False
                access.configuration.connection_pool_maxsize = CONNECTIONS
                client: Any = RESTClientObject
                self._pool = client(access.configuration).pool_manager
                self._identity = access.identity
                if old is not None:
                    with contextlib.suppress(Exception):
                        old.clear()
            assert self._pool is not None
            return self._pool


def _asked(before_write: Callable[[], None], body: bytes) -> Iterator[bytes]:
    """Give the body once it is asked for, which is when the connection stands and the headers are sent."""
    before_write()
    yield body


def _wait_at_most(response: Response, seconds: float) -> None:
    """Change the deadline of reads, which was that of the first line."""
    sock = getattr(response.connection, "sock", None)
    if sock is not None:
        sock.settimeout(seconds)


def _cause(error: BaseException) -> str:
    """Say what it was; urllib3's texts contain addresses of objects."""
    reason = getattr(error, "reason", None)
    if isinstance(reason, BaseException):
        error = reason
    text = str(error)
    return f"{type(error).__name__}: {text.rpartition('>: ')[2] or text}"[:200]
