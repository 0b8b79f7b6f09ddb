"""The options that all commands share, and what is made from them."""

import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Literal

import click

from edl_agent.cli.durations import POSITIVE_SECONDS
from edl_agent.cli.failures import OK, set_where
from edl_agent.cli.output import silence
from edl_agent.client import EtcdClient
from edl_agent.clock import Clock, SystemClock
from edl_agent.config import DEFAULT_DIAL_TIMEOUT, DEFAULT_TTL, Reclaim, Settings, make_settings
from edl_agent.etcd.connection import Connection
from edl_agent.etcd.identity import TlsFiles


@dataclass(frozen=True)
class Common:
    """The shared options as given (flag, else environment, else default).

    Attributes:
        endpoints: comma-separated URLs.
        prefix: of all keys.
        ttl: seconds of the lease.
        dial_timeout: seconds to find a member that answers, ``None`` where not given.
        timeout: seconds for the whole command, ``None`` where not given.
        user: etcd user.
        password_file: file with its password.
        ca_file: TLS certificates to trust.
        cert_file: TLS client certificate.
        key_file: its private key.
        unsafe_plaintext_password: allow a password over http.
        verbose: how often ``-v`` was given.
        debug: print tracebacks.
        output: ``text`` or ``json``.
    """

    endpoints: str
    prefix: str
    ttl: float
    dial_timeout: float | None
    timeout: float | None
    user: str | None
    password_file: str | None
    ca_file: str | None
    cert_file: str | None
    key_file: str | None
    unsafe_plaintext_password: bool
    verbose: int
    debug: bool
    output: Literal["text", "json"]

    @property
    def json(self) -> bool:
        """Whether JSON is wanted."""
        return self.output == "json"

    @property
    def seconds(self) -> float:
        """Time for a short command."""
        return self.timeout if self.timeout is not None else 5.0

    def settings(self) -> Settings:
        """Raises ConfigurationError with the bad part in its text."""
        return make_settings(self.endpoints, None, **self._keywords())

    def client(
        self, num_pservers: int | None = None, *, host: str | None = None, reclaim: Reclaim = "always"
    ) -> EtcdClient:
        """A client; nothing is dialled yet. Raises ConfigurationError."""
        return EtcdClient(self.endpoints, num_pservers, host=host, reclaim=reclaim, **self._keywords())

    def _keywords(self) -> dict[str, Any]:
        given = self.ca_file or self.cert_file or self.key_file
        return {
            "dial_timeout": min(DEFAULT_DIAL_TIMEOUT, self.ttl) if self.dial_timeout is None else self.dial_timeout,
            "ttl": self.ttl,
            "prefix": self.prefix,
            "tls": TlsFiles(self.ca_file, self.cert_file, self.key_file) if given else None,
            "user": self.user,
            "password_file": self.password_file,
            "unsafe_plaintext_password": self.unsafe_plaintext_password,
        }


def connect(settings: Settings) -> tuple[Connection, Clock]:
    """A connection for what `EtcdClient` does not offer; the caller closes it."""
    clock = SystemClock()
    connection = Connection(
        settings.endpoints, tls=settings.tls, login=settings.login, dial_timeout=settings.dial_timeout, clock=clock
    )
    return connection, clock


_OPTIONS = [
    click.option(
        "--endpoints",
        envvar="EDL_ETCD_ENDPOINTS",
        required=True,
        show_envvar=True,
        metavar="URL,...",
        help="etcd members: http://h:p, https://h:p or h:p, comma-separated.",
    ),
    click.option(
        "--prefix", envvar="EDL_PREFIX", default="", show_envvar=True, metavar="/PART...", help="Put before every key."
    ),
    click.option(
        "--ttl",
        type=POSITIVE_SECONDS,
        envvar="EDL_TTL",
        default=DEFAULT_TTL,
        show_default=True,
        show_envvar=True,
        metavar="S",
        help="Lease time in seconds: so long after a crash a slot is free again.",
    ),
    click.option(
        "--dial-timeout",
        type=POSITIVE_SECONDS,
        default=None,
        metavar="S",
        help=f"Seconds to find a member that answers; default {DEFAULT_DIAL_TIMEOUT:g}, at most the --ttl.",
    ),
    click.option(
        "--timeout",
        type=POSITIVE_SECONDS,
        default=None,
        metavar="S",
        help="Seconds for the whole command, default 5; register: until a slot is held, default no limit.",
    ),
    click.option("--user", envvar="EDL_ETCD_USER", show_envvar=True, metavar="NAME", help="etcd user."),
    click.option(
        "--password-file",
        envvar="EDL_ETCD_PASSWORD_FILE",
        show_envvar=True,
        metavar="FILE",
        help="File with the user's password, read again at each login. A password is never a flag: everybody on the "
        "machine could read it.",
    ),
    click.option(
        "--ca", "ca_file", envvar="EDL_ETCD_CA", show_envvar=True, metavar="FILE", help="TLS: whom to trust (PEM)."
    ),
    click.option(
        "--cert", "cert_file", envvar="EDL_ETCD_CERT", show_envvar=True, metavar="FILE", help="TLS: client certificate."
    ),
    click.option("--key", "key_file", envvar="EDL_ETCD_KEY", show_envvar=True, metavar="FILE", help="TLS: its key."),
    click.option(
        "--unsafe-plaintext-password",
        is_flag=True,
        help="Allow user and password over http, where the network can read them.",
    ),
    click.option("-v", "--verbose", count=True, help="Log more to stderr; twice for everything."),
    click.option("--debug", is_flag=True, help="Print tracebacks."),
    click.option(
        "-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True, help="Format."
    ),
]


def shared_options(log_level: int = logging.WARNING) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Add the shared options to a command, which gets them as its first argument, a `Common`.

    Args:
        log_level: what the command logs to stderr without ``-v``; each ``-v`` shows one level more.
    """

    def decorate(command: Callable[..., int]) -> Callable[..., int]:
        @functools.wraps(command)
        def run(**given: Any) -> int:
            common = Common(**{field.name: given.pop(field.name) for field in fields(Common)})
            # Before anything else, and so that a warning of the settings comes once, from the command itself.
            logging.disable(logging.CRITICAL)
            try:
                settings = common.settings()
            finally:
                logging.disable(logging.NOTSET)
            prefix = f", prefix {settings.keys.prefix}" if settings.keys.prefix else ""
            set_where(",".join(map(str, settings.endpoints)) + prefix)
            _log_to_stderr(max(logging.DEBUG, log_level - 10 * common.verbose))
            try:
                return command(common, **given)
            except BrokenPipeError:
                silence()  # whoever read our output has gone; that is no error of ours
                return OK

        for option in reversed(_OPTIONS):
            run = option(run)
        return run

    return decorate


def _log_to_stderr(level: int) -> None:
    logging.raiseExceptions = False  # a closed stderr must not end anything
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(message)s")
