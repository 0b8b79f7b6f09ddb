"""Launchers against the session's etcd."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import SharedEtcd
from tests.launcher.launcher_process import LauncherProcess

Launch = Callable[..., LauncherProcess]


@pytest.fixture
def launch(etcd: SharedEtcd, prefix: str, tmp_path: Path) -> Iterator[Launch]:
    """``launch(role, command, name=, port=, ...)``: a started launcher, killed after the test."""
    with ExitStack() as stack:

        def make(role: str, command: list[str], **options: Any) -> LauncherProcess:
            given = {"prefix": prefix, "folder": tmp_path, **options}
            endpoints = given.pop("endpoints", etcd.client_url)
            return stack.enter_context(LauncherProcess(endpoints, role, command, **given))

        yield make


@pytest.fixture
def stored(etcd: SharedEtcd, prefix: str) -> Callable[[str], dict[str, Any] | None]:
    """``stored(key)``: value, mod revision and lease of a key below the test's prefix, ``None`` where absent."""

    def read(key: str) -> dict[str, Any] | None:
        from base64 import b64decode

        found = json.loads(etcd.etcdctl("get", prefix + key, "-w", "json")).get("kvs")
        if not found:
            return None
        one = found[0]
        return {
            "value": b64decode(one.get("value", "")).decode(),
            "epoch": one["mod_revision"],
            "lease": one.get("lease", 0),
        }

    return read
