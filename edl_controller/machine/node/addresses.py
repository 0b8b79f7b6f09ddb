"""Addresses of pods on the loopback, and who listens on all of them at once."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import socket
from collections import deque
from collections.abc import Iterator
from pathlib import Path

_FIRST_BLOCK, _BLOCKS = 64 * 256, 128 * 256
"""Blocks 127.64.0.0/24 to 127.191.255.0/24: below, other programs have favourites (127.0.1.1, 127.0.0.53)."""


class AddressPool:
    """Loopback addresses of one node, no two nodes of the machine share any. Not thread-safe.

    A block of 256 addresses is taken by an abstract Unix socket of its name: the kernel gives it back when the process
    ends, in whatever way. A node takes more blocks when it needs them.

    Args:
        node: its name; a node finds its old block again where that is free.
    """

    def __init__(self, node: str) -> None:
        self._start = int.from_bytes(hashlib.sha256(node.encode()).digest()[:4], "big")
        self._blocks: list[socket.socket] = []
        self._free: deque[str] = deque()
        self._add_block()
        self.node_address = self._free.popleft()

    def take(self) -> str:
        """Return an address that no pod has; the one that has been free for longest.

        Raises:
            OSError: every block of the machine is taken.
        """
        if not self._free:
            self._add_block()
        return self._free.popleft()

    def release(self, address: str) -> None:
        """Give an address back."""
        self._free.append(address)

    def close(self) -> None:
        """Give the blocks back."""
        for block in self._blocks:
            block.close()
        self._blocks.clear()

    def _add_block(self) -> None:
        for step in range(_BLOCKS):
            high, low = divmod(_FIRST_BLOCK + (self._start + step) % _BLOCKS, 256)
            name = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            try:
                name.bind(f"\0edl-loopback-127.{high}.{low}")
            except OSError as error:
                name.close()
                if error.errno != errno.EADDRINUSE:
                    raise
                continue
            self._blocks.append(name)
            self._free.extend(f"127.{high}.{low}.{host}" for host in range(1, 255))
            return
        raise OSError(errno.EADDRNOTAVAIL, "every block of loopback addresses is taken")


def wildcard_listeners() -> dict[int, int]:
    """Return the TCP sockets that listen on all addresses of this machine: inode to port."""
    found = {}
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError), open(f"/proc/net/{table}") as file:
            for line in list(file)[1:]:
                fields = line.split()
                host, _, port = fields[1].partition(":")
                if fields[3] == "0A" and not host.strip("0"):  # 0A: LISTEN
                    found[int(fields[9])] = int(port, 16)
    return found


def descendants(root: int) -> Iterator[int]:
    """Yield the ids of all processes below ``root``, by their parents."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            children.setdefault(parent(int(name)), []).append(int(name))
    waiting = deque(children.get(root, ()))
    while waiting:
        pid = waiting.popleft()
        yield pid
        waiting.extend(children.get(pid, ()))


def parent(pid: int) -> int:
    """Return the id of a process's parent; 0 where there is no such process."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return 0


def socket_inodes(pid: int) -> set[int]:
    """Return the inodes of the sockets that a process holds; empty where it may not be looked at."""
    found = set()
    with contextlib.suppress(OSError):
        for number in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                target = os.readlink(f"/proc/{pid}/fd/{number}")
                if target.startswith("socket:["):
                    found.add(int(target[8:-1]))
    return found
