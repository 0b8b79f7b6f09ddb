"""Listening sockets that are made safely: a Unix socket in a private folder, or TCP on request."""

import contextlib
import errno
import fcntl
import ipaddress
import os
import socket
import stat
import struct

from edl_agent import errors

_CREDENTIALS = struct.Struct("3i")
"""``struct ucred``: pid, uid, gid."""


BACKLOG = 1024
"""Connections that wait to be accepted; the system's own limit may be lower. A Unix socket refuses further ones."""


class UnixListener:
    """A listening Unix socket, its folder, and who may connect.

    The folder is made with mode 0700 where it is absent, tightened where it is ours, and refused where it is somebody
    else's; it is locked, so that two sidecars cannot share it. The name in it is bound through the opened folder, so no
    symlink is followed and no long path is a problem. What is there already stays, unless it is a socket on which
    nobody listens.

    Args:
        path: of the socket.
        peer_uids: other users who may connect; then the folder can be searched and the socket connected to by all, and
            the uid of each peer, which the kernel tells, decides.

    Attributes:
        folder: descriptor of the opened folder.
        socket: listening.

    Raises:
        ConfigurationError: names what is in the way.
    """

    def __init__(self, path: str, peer_uids: tuple[int, ...] = ()) -> None:
        self.path = os.path.abspath(path)
        self._name = os.path.basename(self.path)
        self.allowed = frozenset({os.geteuid(), *peer_uids})
        self.shared = bool(self.allowed - {os.geteuid()})
        self.folder = _open_folder(os.path.dirname(self.path), 0o711 if self.shared else 0o700)
        self.socket = socket.socket(socket.AF_UNIX)
        try:
            _lock(self.folder, os.path.dirname(self.path))
            self._clear_stale()
            self.socket.bind(self._through_folder)
            # Nobody can connect before listen(), so the mode is in force for the first peer.
            os.chmod(self._name, 0o666 if self.shared else 0o600, dir_fd=self.folder)
            self._identity = self._stat()
            self.socket.listen(BACKLOG)
            self.socket.setblocking(False)
        except BaseException:
            self.socket.close()
            os.close(self.folder)
            raise

    @property
    def _through_folder(self) -> str:
        return f"/proc/self/fd/{self.folder}/{self._name}"

    def welcomes(self, connection: socket.socket) -> bool:
        """Whether the kernel names one of the allowed users as the one who connected."""
        raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        _, uid, _ = _CREDENTIALS.unpack(raw)
        return uid in self.allowed

    def close(self) -> None:
        """Stop listening and remove the socket, if it is still ours."""
        with contextlib.suppress(OSError):
            if self._stat() == self._identity:
                os.unlink(self._name, dir_fd=self.folder)
        self.socket.close()
        os.close(self.folder)

    def _stat(self) -> tuple[int, int]:
        found = os.stat(self._name, dir_fd=self.folder, follow_symlinks=False)
        return found.st_dev, found.st_ino

    def _clear_stale(self) -> None:
        try:
            found = os.stat(self._name, dir_fd=self.folder, follow_symlinks=False)
        except FileNotFoundError:
            return
        if not stat.S_ISSOCK(found.st_mode):
            raise errors.ConfigurationError(f"{self.path} is there already and is no socket; it was left alone")
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(1.0)
            try:
                probe.connect(self._through_folder)
            except ConnectionRefusedError:
                os.unlink(self._name, dir_fd=self.folder)
                return
            except OSError as error:
                raise errors.ConfigurationError(f"{self.path} cannot be examined: {error.strerror or error}") from error
        raise errors.ConfigurationError(f"somebody listens on {self.path} already")


class TcpListener:
    """A listening TCP socket.

    Args:
        host: an address, or ``localhost``.
        port: 0 takes a free one.

    Raises:
        ConfigurationError: the address is taken or not ours.
    """

    def __init__(self, host: str, port: int) -> None:
        try:
            family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[
                0
            ]
            self.socket = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:
            raise errors.ConfigurationError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
        try:
            # Lets a restart have its port while old connections fade; on Linux it lets nobody share a listening port.
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self.socket.bind(address)
            self.socket.listen(BACKLOG)
            self.socket.setblocking(False)
        except OSError as error:
            self.socket.close()
            what = "somebody listens there already" if error.errno == errno.EADDRINUSE else error.strerror or str(error)
            raise errors.ConfigurationError(f"cannot listen on {host}:{port}: {what}") from error
        self.port: int = self.socket.getsockname()[1]

    def welcomes(self, connection: socket.socket) -> bool:
        """Everybody on the loopback; elsewhere TLS decides."""
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return True

    def close(self) -> None:
        """Stop listening."""
        self.socket.close()


def is_loopback(host: str) -> bool:
    """Whether the address is reached from this machine only. A name other than ``localhost`` is not believed."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _open_folder(path: str, mode: int) -> int:
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, mode)
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise errors.ConfigurationError(f"the socket's folder {path}: {error.strerror or error}") from error
    try:
        found = os.fstat(folder)
        if found.st_uid != os.geteuid():
            raise errors.ConfigurationError(
                f"the socket's folder {path} belongs to uid {found.st_uid}: name one that can be made or is ours"
            )
        if found.st_mode & 0o1000:
            # A folder such as /tmp, even where we are root, is not to be taken away from the others.
            raise errors.ConfigurationError(f"the socket's folder {path} is everybody's: name a folder in it")
        if stat.S_IMODE(found.st_mode) != mode:
            os.fchmod(folder, mode)
    except BaseException:
        os.close(folder)
        raise
    return folder


def _lock(folder: int, path: str) -> None:
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EAGAIN):
            raise errors.ConfigurationError(f"another sidecar uses {path} already") from error
        # A file system without locks: the socket itself still tells whether somebody listens.
