"""Endpoints of which only one is good: unroutable, refused, and names that resolve late."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.bench.agent_process import AgentProcess
from tests.bench.tcp_proxy import TcpProxy
from tests.bench.waiting import eventually, never
from tests.conftest import SharedEtcd
from tests.etcd.observed_client import Observed

NOISE = 0.7
"""Seconds that a busy machine with two cores may add to a time."""


@contextlib.contextmanager
def unroutable() -> Iterator[str]:
    """An address on which connecting is never answered: the queue of a listener that never accepts is full."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(8):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        with socket.socket() as probe:
            probe.settimeout(0.3)
            with pytest.raises(TimeoutError):
                probe.connect(listener.getsockname())
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.fault("A45")
def test_the_one_good_endpoint_of_three_is_found_and_a_bad_one_used_as_soon_as_it_is_good(
    etcd: SharedEtcd, tcp_proxy_factory: Callable[[str], TcpProxy], prefix: str
) -> None:
    refused, good = tcp_proxy_factory(etcd.client_url), tcp_proxy_factory(etcd.client_url)
    refused.refuse()
    dial_timeout = 3.0
    with unroutable() as dead:
        for order in ([dead, refused.endpoint, good.endpoint], [good.endpoint, dead, refused.endpoint]):
            begun = time.monotonic()
            with Observed(order, prefix=prefix, ttl=5, dial_timeout=dial_timeout) as agent:
                assert agent.register(timeout=dial_timeout + 1.0) == 0
                assert time.monotonic() - begun < dial_timeout + 1.0
                assert agent.endpoint == good.endpoint
                lease = agent.client.session.lease_id
                refused.pass_all()
                good.refuse()
                # Not after the 300 s for which others let a failed endpoint rest, nor after 30: at once.
                begun = time.monotonic()
                agent.client.get_key("/anything", timeout=dial_timeout + 1.0)
                assert time.monotonic() - begun < dial_timeout + 1.0
                assert agent.endpoint == refused.endpoint
                never(lambda agent=agent: agent.client.session.index is None, 0.5)  # type: ignore[misc]
                agent.assert_undisturbed(lease)
                good.pass_all()
                refused.refuse()


@pytest.mark.fault("A45")
def test_a_name_that_resolves_late_is_used_when_it_does(
    etcd: SharedEtcd, agent_factory: Callable[..., AgentProcess], prefix: str, tmp_path: Path
) -> None:
    # The agent gets a hosts file of its own in a mount namespace; no name server is asked.
    hosts, resolver = tmp_path / "hosts", tmp_path / "resolv.conf"
    hosts.write_text("127.0.0.1 localhost\n")
    resolver.write_text("nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")
    bind = (
        "import os, subprocess, sys\n"
        "subprocess.run(['mount', '--bind', sys.argv[1], '/etc/hosts'], check=True)\n"
        "subprocess.run(['mount', '--bind', sys.argv[2], '/etc/resolv.conf'], check=True)\n"
        "os.execvp(sys.argv[3], sys.argv[3:])\n"
    )
    wrapper = ["unshare", "--mount", "--propagation", "private", sys.executable, "-c", bind, str(hosts), str(resolver)]
    try:
        subprocess.run([*wrapper, "true"], check=True, capture_output=True, timeout=10)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no mount namespaces here: {error}")
    port = etcd.endpoint.rsplit(":", 1)[1]
    dial_timeout = 5.0  # the command's default
    agent = agent_factory(f"http://etcd-late.test:{port}", 7001, prefix=prefix, ttl=5, wrapper=wrapper)
    never(lambda: agent.named("registered"), 2.5)
    assert agent.running, agent.stderr
    with hosts.open("a") as file:  # in place: the mount shows this very file
        file.write("127.0.0.1 etcd-late.test\n")
    resolves = time.monotonic()
    agent.wait_event("registered", dial_timeout + 1.0 + NOISE)
    assert time.monotonic() - resolves < dial_timeout + 1.0 + NOISE
    assert agent.terminate() == 0
    eventually(lambda: etcd.etcdctl("get", f"{prefix}/ps/", "--prefix", "--keys-only").strip() == "", 2.0, "released")
