"""Network namespaces on one bridge (B3): a real network between agents and etcd, cut without a word to either end.

Needs root and ``ip`` (iproute2), no packet filter: a namespace is cut off by taking its cable out of the bridge, so
packets vanish as behind a dead switch. etcd stays where it is; a ``TcpProxy(target, host=lab.host_address)`` lets
the namespaces reach it.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import subprocess
from types import TracebackType
from typing import Self

_numbers = itertools.count()


def _run(*arguments: str) -> None:
    subprocess.run(arguments, check=True, capture_output=True, text=True, timeout=20)


class Namespace:
    """One network namespace: ``address`` is its IPv4 address, ``wrapper`` what to put before a command to run it
    inside.
    """

    def __init__(self, name: str, bridge: str, address: str, host_address: str) -> None:
        self.name, self.address = name, address
        self._bridge, self._host_address = bridge, host_address
        self._outer, self._inner = f"{name}o", f"{name}i"
        _run("ip", "netns", "add", name)
        _run("ip", "link", "add", self._outer, "type", "veth", "peer", "name", self._inner, "netns", name)
        _run("ip", "link", "set", self._outer, "master", bridge, "up")
        _run("ip", "-n", name, "addr", "add", f"{address}/24", "dev", self._inner)
        _run("ip", "-n", name, "link", "set", self._inner, "up")
        _run("ip", "-n", name, "link", "set", "lo", "up")

    @property
    def wrapper(self) -> list[str]:
        """Command prefix; the command replaces it, so signals reach the command."""
        return ["ip", "netns", "exec", self.name]

    def cut(self) -> None:
        """Drop all packets, both ways; nobody is told."""
        _run("ip", "link", "set", self._outer, "nomaster")

    def restore(self) -> None:
        """End ``cut()`` and ``reject()``."""
        _run("ip", "link", "set", self._outer, "master", self._bridge)
        with contextlib.suppress(subprocess.CalledProcessError):
            _run("ip", "-n", self.name, "route", "del", "unreachable", f"{self._host_address}/32")

    def reject(self) -> None:
        """Everything to the host fails at once with "no route to host"."""
        _run("ip", "-n", self.name, "route", "replace", "unreachable", f"{self._host_address}/32")

    def limit(self, kilobit: int | None) -> None:
        """Limit what the namespace sends (kbit/s); None ends it."""
        with contextlib.suppress(subprocess.CalledProcessError):
            _run("tc", "-n", self.name, "qdisc", "del", "dev", self._inner, "root")
        if kilobit is not None:
            shape = ["rate", f"{kilobit}kbit", "burst", "16kbit", "latency", "400ms"]
            _run("tc", "-n", self.name, "qdisc", "add", "dev", self._inner, "root", "tbf", *shape)

    def close(self) -> None:
        """Remove it. What still runs inside keeps an empty network."""
        for command in (("ip", "link", "del", self._outer), ("ip", "netns", "del", self.name)):
            with contextlib.suppress(subprocess.CalledProcessError):
                _run(*command)


class NetworkLab:
    """A bridge with an address on the host and some namespaces. A context manager; removes everything on exit."""

    def __init__(self, namespaces: int = 1) -> None:
        """Make it. Raises RuntimeError with the reason where that is impossible here."""
        reason = self.unavailable()
        if reason is not None:
            raise RuntimeError(f"no network namespaces: {reason}")
        number = next(_numbers)
        self._base = f"e{os.getpid() % 10**7}x{number}"
        # Documentation says 198.18.0.0/15 is for tests of networks; one /24 for each process and lab.
        place = (os.getpid() * 8 + number) % 512
        subnet = f"198.{18 + place // 256}.{place % 256}"
        self.host_address = f"{subnet}.1"
        self.namespaces: list[Namespace] = []
        _run("ip", "link", "add", self._base, "type", "bridge")
        try:
            _run("ip", "addr", "add", f"{self.host_address}/24", "dev", self._base)
            _run("ip", "link", "set", self._base, "up")
            for index in range(namespaces):
                namespace = Namespace(
                    f"{self._base}{'abcdefgh'[index]}", self._base, f"{subnet}.{index + 2}", self.host_address
                )
                self.namespaces.append(namespace)
        except BaseException:
            self.close()
            raise

    @staticmethod
    def unavailable() -> str | None:
        """Why there are no network namespaces here, None where there are."""
        if os.geteuid() != 0:
            return "they need root"
        if shutil.which("ip") is None:
            return "there is no `ip` (iproute2)"
        probe = f"eprobe{os.getpid()}"
        try:
            _run("ip", "netns", "add", probe)
            _run("ip", "netns", "del", probe)
        except subprocess.CalledProcessError as error:
            return str(error.stderr).strip() or "`ip netns add` failed"
        return None

    def close(self) -> None:
        """Remove everything. Idempotent."""
        for namespace in self.namespaces:
            namespace.close()
        self.namespaces = []
        with contextlib.suppress(subprocess.CalledProcessError):
            _run("ip", "link", "del", self._base)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
