"""Settings as frozen values: unit, default, reason. Flags win over the environment."""

import logging
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from edl_agent.address import check_host
from edl_agent.errors import ConfigurationError
from edl_agent.etcd.endpoints import Endpoint, parse_endpoints
from edl_agent.etcd.identity import Login, TlsFiles
from edl_agent.keys import KeySchema, check_desired

_log = logging.getLogger(__name__)

DEFAULT_TTL = 10.0
"""Seconds. C code that holds the interpreter lock delays the keepalive thread.

5 s (the original's) leaves it little room.
"""

DEFAULT_DIAL_TIMEOUT = 5.0
"""Seconds to find a member that answers; the original's value."""

MAX_TTL = 86_400.0
"""Seconds. A slot of a dead process stays taken for the whole TTL: more than a day is a mistake."""

MAX_TIMEOUT = 31_536_000.0
"""Seconds (a year). Deadlines far beyond overflow in gRPC and in the threading module."""

Reclaim = Literal["always", "never"]


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that an `EtcdClient` is told at construction.

    Attributes:
        endpoints: etcd members.
        keys: names below the job's prefix.
        num_pservers: count to create in ``/ps_desired`` where none is set; ``None`` waits for it.
        dial_timeout: seconds to find a member that answers.
        ttl: wanted lease time in seconds; etcd may grant more, and the granted time counts.
        host: address to register, ``None`` = ``POD_IP``, else the source address of the route to etcd.
        reclaim: whether a lost slot is claimed again by itself.
        tls: TLS files.
        login: user and password.
    """

    endpoints: tuple[Endpoint, ...]
    keys: KeySchema
    num_pservers: int | None
    dial_timeout: float
    ttl: float
    host: str | None
    reclaim: Reclaim
    tls: TlsFiles | None
    login: Login | None


def make_settings(
    endpoints: str | Iterable[str] | None,
    num_pservers: int | None,
    *,
    dial_timeout: float = DEFAULT_DIAL_TIMEOUT,
    ttl: float = DEFAULT_TTL,
    prefix: str = "",
    host: str | None = None,
    tls: TlsFiles | None = None,
    user: str | None = None,
    password: str | None = None,
    password_file: str | None = None,
    reclaim: Reclaim = "always",
    unsafe_plaintext_password: bool = False,
) -> Settings:
    """Check all settings together.

    Raises:
        ConfigurationError: (a ``ValueError``) with the bad part in its text.
    """
    if tls is not None and not isinstance(tls, TlsFiles):
        raise ConfigurationError(f"tls must be a TlsFiles, not {tls!r}")
    if not isinstance(prefix, str):
        raise ConfigurationError(f"prefix must be text, not {prefix!r}")
    if host is not None:
        host = check_host(host)
    if endpoints is None:
        raise ConfigurationError(
            "endpoints are missing (None): give them, or set EDL_ETCD_ENDPOINTS where from_environment() is to find "
            "them, for example to http://127.0.0.1:2379"
        )
    parsed = parse_endpoints(endpoints, tls=tls is not None)
    _check_seconds("ttl", ttl, MAX_TTL)
    _check_seconds("dial_timeout", dial_timeout, 3600.0)
    if dial_timeout > ttl:
        _log.warning(
            "dial_timeout (%g s) exceeds the lease time (%g s): a lease can end within one attempt to reach etcd",
            dial_timeout,
            ttl,
        )
    if reclaim not in ("always", "never"):
        raise ConfigurationError(f"reclaim must be 'always' or 'never', not {reclaim!r}")
    login = _login(user, password, password_file)
    if login is not None and not parsed[0].tls and not unsafe_plaintext_password:
        raise ConfigurationError(
            "user and password would travel unencrypted to an http endpoint: use https, or set "
            "unsafe_plaintext_password=True (--unsafe-plaintext-password) where the network is trusted"
        )
    if num_pservers is not None:
        check_desired(num_pservers)
    return Settings(
        parsed, KeySchema(prefix.rstrip("/")), num_pservers, float(dial_timeout), float(ttl), host, reclaim, tls, login
    )


def from_environment(environment: Mapping[str, str] = os.environ) -> dict[str, object]:
    """Keyword arguments for `EtcdClient` from ``EDL_*`` variables; unset and empty ones are left out.

    Without ``EDL_ETCD_ENDPOINTS`` there are no ``endpoints`` among them, and `EtcdClient` asks for them by that name.

    Reads ``EDL_ETCD_ENDPOINTS``, ``EDL_PREFIX``, ``EDL_TTL``, ``EDL_ETCD_USER``, ``EDL_ETCD_PASSWORD_FILE``,
    ``EDL_ETCD_CA``, ``EDL_ETCD_CERT``, ``EDL_ETCD_KEY``.

    Raises:
        ConfigurationError: ``EDL_TTL`` is no number.
    """
    found: dict[str, object] = {}
    for variable, name in (
        ("EDL_ETCD_ENDPOINTS", "endpoints"),
        ("EDL_PREFIX", "prefix"),
        ("EDL_ETCD_USER", "user"),
        ("EDL_ETCD_PASSWORD_FILE", "password_file"),
    ):
        if environment.get(variable):
            found[name] = environment[variable]
    if environment.get("EDL_TTL"):
        try:
            found["ttl"] = float(environment["EDL_TTL"])
        except ValueError:
            raise ConfigurationError(f"EDL_TTL is {environment['EDL_TTL']!r}, not a number of seconds") from None
    files = [environment.get(name) or None for name in ("EDL_ETCD_CA", "EDL_ETCD_CERT", "EDL_ETCD_KEY")]
    if any(files):
        found["tls"] = TlsFiles(*files)
    return found


def check_timeout(timeout: object) -> float:
    """Seconds that a call may take; 0 or less is a deadline that has passed.

    Raises:
        ConfigurationError: no finite number, or more than a year.
    """
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout <= MAX_TIMEOUT:
        raise ConfigurationError(f"timeout must be a number of seconds, at most {MAX_TIMEOUT:g}, not {timeout!r}")
    return max(float(timeout), 0.0)


def check_start_revision(revision: object) -> int | None:
    """The first revision that a watch wants; ``None`` = read first.

    Raises:
        ConfigurationError: not an ``int`` in 1..2**63 - 1.
    """
    if revision is None:
        return None
    if isinstance(revision, bool) or not isinstance(revision, int) or not 1 <= revision < 2**63:
        raise ConfigurationError(f"start_revision must be a whole number in 1..2**63 - 1, not {revision!r}")
    return revision


def _check_seconds(name: str, value: object, most: float) -> None:
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not math.isfinite(value)
        or not 0 < value <= most
    ):
        raise ConfigurationError(f"{name} must be a number of seconds above 0 and at most {most:g}, not {value!r}")


def _login(user: str | None, password: str | None, password_file: str | None) -> Login | None:
    if user is None:
        if password is not None or password_file is not None:
            raise ConfigurationError("a password is given without a user")
        return None
    if not user:
        raise ConfigurationError("the user is empty")
    if (password is None) == (password_file is None):
        raise ConfigurationError("give the user's password either as text or as a file, one of the two")
    return Login(user, password, password_file)
