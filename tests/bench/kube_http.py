"""A raw client of a Kubernetes API server for the tests: method, path and JSON go in, status and JSON come out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import urllib3

from tests.bench.secret_watch import WATCH

Json = dict[str, Any]

MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"


@dataclass(frozen=True)
class Answer:
    """What the server answered: HTTP status, decoded body, header fields (lower-case names)."""

    status: int
    body: Json
    headers: Mapping[str, str]

    @property
    def reason(self) -> str:
        """The reason of a Status body (``NotFound``, ``AlreadyExists``, ...); empty in an object."""
        return str(self.body.get("reason", "")) if self.body.get("kind") == "Status" else ""


class UnexpectedAnswerError(RuntimeError):
    """The server answered with another status than the caller could use; ``answer`` is what it said."""

    def __init__(self, what: str, answer: Answer) -> None:
        super().__init__(f"{what}: {answer.status} {json.dumps(answer.body)[:1000]}")
        self.answer = answer


class KubeHttpClient:
    """One identity at one API server. Thread-safe; ``close()`` drops its connections."""

    def __init__(self, url: str, ca: Path, token: str, *, timeout: float = 30.0) -> None:
        """``url``: scheme, host and port. ``token``: bearer token. ``timeout``: seconds of each connect and read."""
        self.url, self.ca, self.token = url, ca, token
        WATCH.keep(token, "a bearer token")
        self._pool = urllib3.PoolManager(
            num_pools=1, maxsize=32, ca_certs=str(ca), timeout=urllib3.Timeout(timeout), retries=False
        )

    def close(self) -> None:
        """Drop all connections."""
        self._pool.clear()

    def call(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        content_type: str = "application/json",
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Send one request and return what came. Raises urllib3.exceptions.HTTPError where nothing came."""
        answer = self._pool.request(
            method,
            self.url + path,
            body=None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode(),
            headers=self._headers(content_type if body is not None else None) | dict(headers or {}),
        )
        decoded = _decode(answer.data)
        if path.endswith("/token") and answer.status < 300:
            WATCH.keep(str(decoded["status"]["token"]), "a service account's token")
        return Answer(answer.status, decoded, {name.lower(): value for name, value in answer.headers.items()})

    def expect(self, method: str, path: str, body: object = None, *, content_type: str = "application/json") -> Json:
        """Like ``call``, for a success: returns the body. Raises UnexpectedAnswerError on a status of 400 or more."""
        answer = self.call(method, path, body, content_type=content_type)
        if answer.status >= 400:
            raise UnexpectedAnswerError(f"{method} {path}", answer)
        return answer.body

    def get(self, path: str) -> Json:
        """Read; see ``expect``."""
        return self.expect("GET", path)

    def post(self, path: str, body: object) -> Json:
        """Create; see ``expect``."""
        return self.expect("POST", path, body)

    def put(self, path: str, body: object) -> Json:
        """Replace; see ``expect``."""
        return self.expect("PUT", path, body)

    def patch(self, path: str, body: object, content_type: str = MERGE_PATCH) -> Json:
        """Patch; see ``expect``."""
        return self.expect("PATCH", path, body, content_type=content_type)

    def delete(self, path: str, options: object = None) -> Json:
        """Delete, with DeleteOptions; see ``expect``."""
        return self.expect("DELETE", path, options)

    def watch(self, path: str, *, seconds: int = 300) -> Iterator[Json]:
        """Yield the events of a watch until the server ends it after ``seconds``.

        ``path`` may have a query. Raises UnexpectedAnswerError where the server refuses, and
        urllib3.exceptions.HTTPError where the connection breaks.
        """
        mark = "&" if "?" in path else "?"
        answer = self._pool.request(
            "GET",
            f"{self.url}{path}{mark}watch=true&timeoutSeconds={seconds}",
            headers=self._headers(None),
            preload_content=False,
            timeout=urllib3.Timeout(connect=10.0, read=seconds + 10.0),
        )
        try:
            if answer.status >= 400:
                raise UnexpectedAnswerError(f"watch {path}", Answer(answer.status, _decode(answer.data), {}))
            rest = b""
            # read1 returns what is there; stream() would wait for a full block.
            while chunk := answer.read1():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    if line.strip():
                        yield json.loads(line)
        finally:
            answer.close()

    def _headers(self, content_type: str | None) -> dict[str, str]:
        headers = {"Authorization": f"Bearer {self.token}", "Accept": "application/json"}
        return headers if content_type is None else headers | {"Content-Type": content_type}


def _decode(data: bytes) -> Json:
    try:
        decoded = json.loads(data) if data else {}
    except ValueError:
        decoded = {"text": data.decode(errors="replace")}
    return decoded if isinstance(decoded, dict) else {"value": decoded}
