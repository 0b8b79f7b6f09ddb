"""The protocol's description: linted, compiled into the private pool, and served in full."""

from __future__ import annotations

import subprocess
import sys

import pytest

from edl_agent.sidecar import wire
from edl_agent.sidecar.service import AgentService
from tests.sidecar.foreign_tools import CannotBeHad, buf
from tests.sidecar.sidecar_process import METHODS, ROOT


@pytest.mark.timeout(400)  # the first time it is fetched
def test_buf_finds_nothing() -> None:
    try:
        program = buf()
    except CannotBeHad as reason:
        print(f"the protocol is not linted: {reason}")
        pytest.skip(str(reason))
    done = subprocess.run([program, "lint", str(ROOT / "protos")], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_each_method_is_served_and_has_messages_of_its_own() -> None:
    kinds = []
    for method in wire.service(wire.AGENT).methods:
        name = "".join(f"_{one.lower()}" if one.isupper() else one for one in method.name)[1:]
        assert callable(getattr(AgentService, name))
        kinds += [method.input_type.full_name, method.output_type.full_name]
        assert kinds[-2:] == [f"edl.agent.v1.{method.name}Request", f"edl.agent.v1.{method.name}Response"]
    assert len(kinds) == 2 * len(METHODS) == len(set(kinds))


@pytest.mark.security(29)
def test_no_method_runs_a_command_or_names_a_file() -> None:
    """The review list of what a caller may hand over: a new method or field of bytes or text is to be looked at."""
    free = {
        "AttachRequest.program",
        "RegisterRequest.host",
        "GetRequest.key",
        "PutRequest.key",
        "PutRequest.value",
        "PutRequest.expected",
        "SetDatasetRequest.specs",
        "FailTaskRequest.reason",
        "StartDrainRequest.reason",
    }
    ours = {"attachment", "task_id", "worker"}
    found = set()
    for method in wire.service(wire.AGENT).methods:
        for field in method.input_type.fields:
            if field.type in (field.TYPE_STRING, field.TYPE_BYTES) and field.name not in ours:
                found.add(f"{method.input_type.name}.{field.name}")
    assert found == free


def test_nothing_is_put_into_protobufs_default_pool() -> None:
    code = """
import sys
from edl_agent.sidecar import server, wire
from google.protobuf import descriptor_pool
wire.message("Session"), wire.service(wire.HEALTH)
for name in ("edl/agent/v1/agent.proto", "grpc/health/v1/health.proto"):
    try:
        descriptor_pool.Default().FindFileByName(name)
    except KeyError:
        continue
    raise AssertionError(name)
foreign = ("grpc_health", "kubernetes", "edl_controller")
assert not [name for name in sys.modules if name.endswith("_pb2") and not name.startswith("google.protobuf")]
assert not [name for name in sys.modules if name.startswith(foreign)]
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code], cwd=ROOT, check=True, timeout=60)


def test_the_agent_itself_does_not_load_the_sidecar() -> None:
    code = "import sys, edl_agent; assert not [name for name in sys.modules if 'sidecar' in name]"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60)
