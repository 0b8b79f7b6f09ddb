"""Who we are to etcd and whom we trust: TLS files, user and password. Files are read anew whenever they changed."""

import contextlib
import logging
import os
import stat
from dataclasses import dataclass, field

import grpc

from edl_agent.errors import AuthenticationFailed, ConfigurationError

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """TLS settings. gRPC's own default is kept: TLS 1.2 or newer, certificate and host name checked.

    There is no way to switch it off.

    Attributes:
        ca: file with the certificates to trust; ``None`` = those that come with gRPC.
        cert: client certificate chain file, with ``key``.
        key: its private key file; should be readable by its owner only.
        server_name: name to expect in the server's certificate in place of the endpoint's host.
    """

    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    server_name: str | None = None

    def __post_init__(self) -> None:
        for name in ("ca", "cert", "key"):
            _check_path(f"TLS: {name}", getattr(self, name))
        if self.server_name is not None and not isinstance(self.server_name, str):
            raise ConfigurationError(f"TLS: server_name must be text, not {self.server_name!r}")
        if (self.cert is None) != (self.key is None):
            raise ConfigurationError("TLS: a client certificate and its key go together, only one of them is given")

    def fingerprint(self) -> tuple[tuple[int, int, int], ...]:
        """Changes when a file was replaced or rewritten; a missing file reads as zeros."""
        return tuple(_stat(path) for path in (self.ca, self.cert, self.key) if path is not None)

    def warn_of_open_key(self) -> None:
        """Log a warning where others than its owner can read the private key."""
        if self.key is not None:
            _warn_if_open(self.key)

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """Read the files.

        Raises:
            AuthenticationFailed: a file cannot be read.
        """
        ca, cert, key = (None if path is None else _read(path) for path in (self.ca, self.cert, self.key))
        return grpc.ssl_channel_credentials(ca, key, cert)


@dataclass(frozen=True, slots=True)
class Login:
    """User and password; the password from a file is read at each authentication.

    So that a changed secret is picked up.
    """

    user: str
    secret: str | None = field(default=None, repr=False)
    secret_file: str | None = None

    def __post_init__(self) -> None:
        for name, text in (("user", self.user), ("password", self.secret)):
            if text is None and name == "password":
                continue
            if not isinstance(text, str):
                raise ConfigurationError(f"{name} must be text, not {type(text).__name__}")
            if any("\ud800" <= letter <= "\udfff" for letter in text):  # not shown, nor by a UnicodeEncodeError
                raise ConfigurationError(f"{name} cannot be written in UTF-8")
        _check_path("password_file", self.secret_file)

    def password(self) -> str:
        """The password now.

        Raises:
            AuthenticationFailed: the file cannot be read.
        """
        if self.secret_file is None:
            return self.secret or ""
        raw = _read(self.secret_file, "the password file ")
        text: str | None = None
        with contextlib.suppress(UnicodeDecodeError):
            text = raw.decode().rstrip("\r\n")
        if text is None:  # raised out here, since UnicodeDecodeError shows the bytes, even as a mere context
            raise AuthenticationFailed(f"the password file {self.secret_file} is not UTF-8 text")
        return text


def _stat(path: str) -> tuple[int, int, int]:
    try:
        found = os.stat(path)
    except OSError:
        return (0, 0, 0)
    return (found.st_ino, found.st_mtime_ns, found.st_size)


def _check_path(name: str, path: object) -> None:
    if path is not None and not isinstance(path, str | os.PathLike):
        raise ConfigurationError(f"{name} must be the path of a file, not {path!r}")


def _read(path: str, what: str = "") -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except ValueError as error:  # a path with a zero byte
        raise AuthenticationFailed(f"cannot read {what}{path!r}: {error}") from error
    except OSError as error:
        raise AuthenticationFailed(f"cannot read {what}{path}: {error.strerror}") from error


def _warn_if_open(path: str) -> None:
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return
    if mode & (stat.S_IRGRP | stat.S_IROTH):
        _log.warning(
            "Private key %s is readable by others than its owner (mode %o); set it to 600", path, stat.S_IMODE(mode)
        )
