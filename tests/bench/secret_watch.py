"""Every secret that a test uses, and whether anything tells it: security row 21, over the whole suite.

Known are passwords and tokens of etcd, bearer tokens, private keys: where the bench makes them, and where the code
under test reads or receives them. Heard are the logs at DEBUG, what is printed, the text of every error of ours, the
command lines of the processes that are started, what these say to the bench, and what is written to an API server.
A test during which a secret is told fails, whatever it was about. ``/proc/PID/environ`` is its owner's own, and left
out.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Generator
from typing import Any

import pytest

from edl_agent.errors import EdlAgentError
from edl_agent.etcd.connection import Connection
from edl_agent.etcd.identity import Login
from edl_controller.errors import EdlControllerError

LEAST = 12
"""Characters of a secret that is watched for; shorter ones may be words."""
PART = 60
"""Characters of a secret that are looked for: a part of a private key is as bad as the whole."""
LOGGERS = ("edl_agent", "edl_controller", "kubernetes", "urllib3", "grpc")
OWN_TOOLS = frozenset({"etcdctl", "openssl", "kubectl"})
"""Programs of the bench that are given secrets as arguments, since they know no other way, or are asked for them."""

_CREDENTIAL = "ExecCredential"
"""What a plugin of a kubeconfig prints, and whom it is asked for."""


class SecretWatch:
    """Keeps secrets, and what was said since it was asked last. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._secrets: dict[str, str] = {}
        self._heard: list[tuple[str, str]] = []

    def keep(self, secret: str | bytes, what: str) -> None:
        """From now on nobody may tell this secret. Where it is a PEM file, each private key in it is one."""
        text = secret.decode("utf-8", "replace") if isinstance(secret, bytes) else secret
        if "PRIVATE KEY-----" in text:
            lines = [line for line in text.splitlines() if len(line) > LEAST and not line.startswith("-")]
            text = max(lines, key=len, default="")
        text = text.strip()[:PART]
        if len(text) >= LEAST and not text.isdigit():
            with self._lock:
                self._secrets.setdefault(text, what)

    def hear(self, text: str | bytes, where: str) -> None:
        """Look through a text at the end of the test: a secret may be known only after it was told."""
        with self._lock:
            self._heard.append((where, text.decode("utf-8", "replace") if isinstance(text, bytes) else text))

    def told(self, *more: tuple[str, str]) -> list[str]:
        """Return what was told since the last time, where, without telling it again.

        Args:
            more: where and text.
        """
        with self._lock:
            heard, self._heard = [*self._heard, *more], []
            secrets = [*self._secrets.items()]
        by_place: dict[str, list[str]] = {}
        for where, text in heard:
            by_place.setdefault(where, []).append(text)
        found = []
        for where, texts in by_place.items():
            joined = "\n".join(texts)
            for secret, what in secrets:
                if secret in joined:
                    line = next((one for one in joined.splitlines() if secret in one), secret)
                    found.append(f"{what}, in {where}: {line.replace(secret, '<SECRET>')[:300]}")
        return found


WATCH = SecretWatch()


class _Listener(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        try:
            WATCH.hear(self.format(record), f"the log of {record.name} at {record.levelname}")
        except Exception as error:  # a record that cannot be formatted is another test's business
            WATCH.hear(repr(error), "a log")


def _listen_to_errors(tree: type[Exception]) -> None:
    begin: Callable[..., None] = tree.__init__

    def init(self: Exception, *args: Any, **options: Any) -> None:
        begin(self, *args, **options)
        WATCH.hear(" ".join(map(str, args)), f"the text of a {type(self).__name__}")

    _put(tree, "__init__", init)


def _put(owner: type[Any], name: str, function: Callable[..., Any]) -> None:
    setattr(owner, name, function)


def _listen_to_commands(event: str, args: tuple[Any, ...]) -> None:
    if event != "subprocess.Popen":
        return
    if (words := _words(args[1])) and not _is_own_tool(words):
        WATCH.hear(" ".join(words), "the command line of a process")


def _words(command: Any) -> list[str]:
    return [os.fsdecode(one) for one in command] if isinstance(command, (list, tuple)) else [str(command)]


def _is_own_tool(words: list[str]) -> bool:
    # The first words may be those of a program that starts it.
    return any(os.path.basename(word) in OWN_TOOLS for word in words[:6])


def start() -> None:
    """Listen from now on, in this process."""
    listener = _Listener(logging.DEBUG)
    for name in LOGGERS:
        logging.getLogger(name).addHandler(listener)
        logging.getLogger(name).setLevel(logging.DEBUG)
    _listen_to_errors(EdlAgentError)
    _listen_to_errors(EdlControllerError)
    sys.addaudithook(_listen_to_commands)

    communicate, password, authenticate = subprocess.Popen.communicate, Login.password, Connection._authenticate

    def communicated(self: subprocess.Popen[Any], *args: Any, **options: Any) -> tuple[Any, Any]:
        said = communicate(self, *args, **options)
        if not _is_own_tool(words := _words(self.args)):
            for text in filter(None, said):
                if _CREDENTIAL not in str(text):
                    WATCH.hear(text, f"what {os.path.basename(words[0])} printed")
        return said

    def read_password(self: Login) -> str:
        found = password(self)
        WATCH.keep(found, "a password of etcd")
        return found

    def authenticated(self: Connection, *args: Any) -> None:
        authenticate(self, *args)
        for _, token in self._quick_metadata or ():
            WATCH.keep(token, "a token of etcd")

    _put(subprocess.Popen, "communicate", communicated)
    _put(Login, "password", read_password)
    _put(Connection, "_authenticate", authenticated)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Listen, and leave tests that look at logs what they would see otherwise."""
    start()
    plugin: Any = session.config.pluginmanager.get_plugin("logging-plugin")
    for handler in (plugin.caplog_handler, plugin.report_handler):
        handler.setLevel(logging.WARNING)  # the root logger's own level, which does not hold for what others log


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(call: pytest.CallInfo[Any]) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Let a test fail during which a secret was told."""
    report = yield
    if call.when == "teardown":
        told = WATCH.told(*((f"what the test printed ({title})", text) for title, text in report.sections))
        if told and report.passed:
            report.outcome = "failed"
            report.longrepr = "secrets were told (tests/bench/secret_watch.py):\n  " + "\n  ".join(told)
    return report
