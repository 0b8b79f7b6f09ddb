"""A program in JavaScript that knows the protocol's description only: it registers, reads and drains by the socket."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import threading
from collections.abc import Callable
from typing import Any

import pytest

from edl_agent.testing import spawn_bound_to_parent
from tests.sidecar.conftest import LocalSidecar
from tests.sidecar.foreign_tools import NODE_CLIENT, CannotBeHad, node_modules
from tests.sidecar.sidecar_process import ROOT, Caller


class NodeProgram:
    """``client.js`` as a process; its lines are steps."""

    def __init__(self, node: str, modules: str, socket: str) -> None:
        self.process = spawn_bound_to_parent(
            [node, str(NODE_CLIENT / "client.js"), str(ROOT / "protos"), socket],
            env={**os.environ, "EDL_NODE_MODULES": modules},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, name="test-node")
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def step(self, name: str) -> dict[str, Any]:
        """The next line, which must be this step."""
        line = self._lines.get(timeout=30)
        assert line.startswith("{"), line + "".join(iter(lambda: self._lines.get(timeout=5), ""))
        found: dict[str, Any] = json.loads(line)
        assert found["step"] == name, found
        return found

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def node_program(sidecar: LocalSidecar) -> Any:
    try:
        node, modules = node_modules()
    except CannotBeHad as reason:
        print(f"the client in JavaScript is not tested: {reason}")
        pytest.skip(str(reason))
    program = NodeProgram(node, str(modules), str(sidecar.path))
    yield program
    program.close()


@pytest.mark.timeout(400)  # the first time its packages are fetched
def test_a_program_in_javascript_registers_reads_and_drains(
    node_program: NodeProgram, key_of: Callable[[str], str], onlooker: Caller
) -> None:
    node_program.step("attached")
    registered = node_program.step("registered")
    assert (registered["index"], registered["address"]) == (0, "127.0.0.1:7164")
    assert registered["state"] == "SESSION_STATE_CONNECTED"
    assert key_of("/ps/0") == "127.0.0.1:7164"
    assert node_program.step("read") == {"step": "read", "found": True, "value": "ff0031"}
    refusal = node_program.step("refused")
    assert refusal["code"] == "PERMISSION_DENIED"
    assert refusal["details"] > 40
    assert node_program.step("pservers") == {"step": "pservers", "complete": True, "addresses": ["127.0.0.1:7164"]}
    assert node_program.step("drain")["state"] == "DRAIN_STATE_NONE"
    onlooker.StartDrain(reason="preStop", seconds=30)
    assert node_program.step("drain") == {"step": "drain", "state": "DRAIN_STATE_REQUESTED", "reason": "preStop"}
    assert node_program.step("acknowledged")["asked"] is True
    node_program.step("released")
    assert node_program.process.wait(10) == 0
    assert key_of("/ps/0") == ""
