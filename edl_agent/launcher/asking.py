"""How a launcher on this machine is found and asked: HTTP over its Unix socket. Standard library only."""

import http.client
import os
import socket
import stat
import tempfile
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from edl_agent.errors import ConfigurationError, Unavailable

_LONGEST_PATH = 100
"""Bytes of a Unix socket's path; Linux takes 107."""


def run_folder(environment: Mapping[str, str]) -> Path:
    """Where launchers have their sockets: ``EDL_RUN_DIR``, else a folder of this user's in the temporary folder.

    Raises:
        ConfigurationError: there is neither, as with a read-only root.
    """
    given = environment.get("EDL_RUN_DIR")
    if given:
        return Path(given)
    try:
        return Path(tempfile.gettempdir()) / f"edl-{os.getuid()}"
    except FileNotFoundError as error:
        raise ConfigurationError(
            "there is no folder that this user can write to, for the launcher's socket: set EDL_RUN_DIR to one"
            " (with a read-only root: in an emptyDir), or mount an emptyDir at /tmp"
        ) from error


def make_private(folder: Path) -> None:
    """Make the folder, for this user only.

    Raises:
        ConfigurationError: it is there and belongs to, or is open to, somebody else.
        OSError: it cannot be made.
    """
    folder.mkdir(mode=0o700, parents=False, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise ConfigurationError(f"{folder} is not a folder that only this user can write to")


def socket_path(name: str, environment: Mapping[str, str]) -> Path:
    """The socket of the launcher with this name. Raises ConfigurationError, as `run_folder` does."""
    folder = run_folder(environment)
    path = folder / f"{name}.sock"
    if len(os.fsencode(path)) > _LONGEST_PATH:
        path = folder / f"{sha256(name.encode()).hexdigest()[:16]}.sock"
    return path


def listens(path: str | Path) -> bool:
    """Whether somebody listens on this socket."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(os.fspath(path))
        except OSError:
            return False
        return True


def find(control: str | None, environment: Mapping[str, str]) -> str:
    """The socket of the launcher that is meant: as given, ``EDL_CONTROL``, or the only one of this user.

    Raises:
        Unavailable: there is none.
        ConfigurationError: there are several (the text lists them), or there is no folder for sockets at all.
    """
    given = control or environment.get("EDL_CONTROL")
    if given:
        return given
    folder = run_folder(environment)
    alive = [str(path) for path in sorted(folder.glob("*.sock")) if listens(path)]
    if not alive:
        raise Unavailable(f"no launcher listens in {folder}")
    if len(alive) > 1:
        raise ConfigurationError(f"several launchers run: choose one by --control: {', '.join(alive)}")
    return alive[0]


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("launcher", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def ask(path: str, method: str, target: str, timeout: float) -> tuple[int, str]:
    """One request.

    Args:
        path: of the socket.
        method: ``GET`` or ``POST``.
        target: for example ``/ready``.
        timeout: seconds for each step.

    Returns:
        Status and text of the answer.

    Raises:
        Unavailable: nobody listens or answers.
    """
    connection = _UnixConnection(path, timeout)
    try:
        connection.request(method, target, headers={"Content-Length": "0"} if method == "POST" else {})
        answer = connection.getresponse()
        return answer.status, answer.read(65536).decode(errors="replace").strip()
    except (OSError, http.client.HTTPException) as error:
        raise Unavailable(f"no answer from the launcher at {path}: {error}") from error
    finally:
        connection.close()
