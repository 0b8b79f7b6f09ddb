"""Where the API server is and who we are to it: loaded by the official client, anew before it gets old.

What the official client knows is not done again here: kubeconfig with several files, contexts, tokens, certificates in
files or inline, OIDC, exec plugins; the service account of a pod.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kubernetes.client.configuration import Configuration
from kubernetes.config import incluster_config as _incluster
from kubernetes.config import kube_config as _kube_config

from edl_controller.errors import Unavailable

incluster_config: Any = _incluster
kube_config: Any = _kube_config
# Neither is typed.

FRESH = 60.0
"""Seconds for which credentials are used before their files are read again."""
AGAIN = 5.0
"""Seconds until the next try, where they could not be read again (a file that is being replaced)."""
EARLY = 10.0
"""Seconds before their end at which credentials with an end are renewed."""
LOAD_WITHIN = 20.0
"""Seconds that loading may take; an exec plugin may hang."""

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Loaded:
    """Credentials as they were read.

    Attributes:
        configuration: of the official client.
        fresh: seconds for which they may be used; None: until they are refused.
    """

    configuration: Configuration
    fresh: float | None = FRESH


CredentialSource = Callable[[], Loaded]
"""Reads credentials from where they are; raises anything where it cannot."""


def in_cluster(folder: Path = SERVICE_ACCOUNT, environment: Mapping[str, str] = os.environ) -> CredentialSource:
    """Return the source of a pod's service account: ``token`` and ``ca.crt`` in ``folder``."""

    def load() -> Loaded:
        configuration = Configuration()
        incluster_config.InClusterConfigLoader(
            token_filename=str(folder / "token"), cert_filename=str(folder / "ca.crt"), environ=environment
        ).load_and_set(configuration)
        return Loaded(configuration)

    return load


def kubeconfig(path: str | Path | None = None, context: str | None = None) -> CredentialSource:
    """Return the source of a kubeconfig: ``path`` (default ``$KUBECONFIG``, else ``~/.kube/config``) and a context."""

    def load() -> Loaded:
        files = str(path or os.environ.get("KUBECONFIG") or Path("~/.kube/config").expanduser())
        merger = kube_config.KubeConfigMerger(files)
        if merger.config is None:
            raise FileNotFoundError(f"no kubeconfig at {files}")
        loader = kube_config.KubeConfigLoader(
            config_dict=merger.config,
            active_context=context,
            config_base_path=None,
            config_persister=merger.save_changes,
        )
        configuration = Configuration()
        loader.load_and_set(configuration)
        if not _has_exec_plugin(merger.config, loader.current_context["context"].get("user")):
            return Loaded(configuration)
        if not (configuration.cert_file or _authorization(configuration)):
            # The official client only logs that; without credentials we would be somebody else.
            raise PermissionError("the exec plugin of the kubeconfig gave no credentials")
        expiry = getattr(loader, "expiry", None)
        # A plugin is a program that may ask people: run again when it says so, or when the server does not know us.
        return Loaded(configuration, None if expiry is None else expiry.timestamp() - time.time() - EARLY)

    return load


def from_environment() -> CredentialSource:
    """Return the source of the pod's service account where there is one, else of the default kubeconfig."""
    inside = "KUBERNETES_SERVICE_HOST" in os.environ and (SERVICE_ACCOUNT / "token").is_file()
    return in_cluster() if inside and "KUBECONFIG" not in os.environ else kubeconfig()


def _has_exec_plugin(config: Any, user: str | None) -> bool:
    entry = config["users"].get_with_name(user, safe=True) if user and config.safe_get("users") else None
    return entry is not None and "exec" in entry["user"]


@dataclass(frozen=True)
class Access:
    """What a request needs. Two with the same ``identity`` may share connections.

    Attributes:
        configuration: of the official client, for its transport.
        headers: that say who we are.
        identity: of the server and the certificates.
        number: grows with every reading.
    """

    configuration: Configuration
    headers: Mapping[str, str]
    identity: str
    number: int


class Credentials:
    """Keeps credentials fresh. Thread-safe.

    Args:
        source: reads them.
        clock: monotonic seconds.
    """

    def __init__(self, source: CredentialSource, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._source, self._clock = source, clock
        self._lock = threading.Lock()
        self._access: Access | None = None
        self._until = float("-inf")
        self._loading: _Loading | None = None

    def access(self, refused: int | None = None) -> Access:
        """Return what to use now. ``refused``: the number of the access that the server did not accept.

        Raises:
            Unavailable: they cannot be read, and never could be.
        """
        with self._lock:
            known = self._access
            if known is not None and known.number != refused and self._clock() < self._until:
                return known
            try:
                loaded = self._load()
                access = _access(loaded.configuration, known.number + 1 if known else 1)
            except Exception as error:
                # Not the text: it may quote what is in the files.
                what = f"Credentials cannot be read: {type(error).__name__}"
                if isinstance(error, OSError):
                    what = f"{what}: {error}"
                if known is None:
                    raise Unavailable(what) from error
                log.warning("%s; going on with those that are known", what)
                self._until = self._clock() + AGAIN
                return known
            self._access = access
            self._until = float("inf") if loaded.fresh is None else self._clock() + max(1.0, loaded.fresh)
            return access

    def _load(self) -> Loaded:
        if self._loading is None:
            self._loading = _Loading(self._source)
        loading, self._loading = self._loading, None
        if not loading.done.wait(LOAD_WITHIN):
            self._loading = loading  # the next caller waits for it, too: plugins do not pile up
            raise TimeoutError(f"not within {LOAD_WITHIN:.0f} s")
        if loading.loaded is None:
            assert loading.error is not None
            raise loading.error
        return loading.loaded


class _Loading:
    """One reading, on a thread of its own, which nothing can end."""

    def __init__(self, source: CredentialSource) -> None:
        self.done = threading.Event()
        self.loaded: Loaded | None = None
        self.error: Exception | None = None
        threading.Thread(target=self._run, args=(source,), name="edl-kube-credentials", daemon=True).start()

    def _run(self, source: CredentialSource) -> None:
        try:
            self.loaded = source()
        except Exception as error:
            self.error = error
        finally:
            self.done.set()


def _authorization(configuration: Configuration) -> str:
    settings: Any = configuration.auth_settings()
    return str(settings["BearerToken"]["value"] or "").strip() if "BearerToken" in settings else ""


def _access(configuration: Configuration, number: int) -> Access:
    # The newline at the end of a token file would break the header.
    token = _authorization(configuration)
    digest = hashlib.sha256()
    for part in (configuration.host, configuration.verify_ssl, configuration.tls_server_name, configuration.proxy):
        digest.update(repr(part).encode())
    for name in (configuration.ssl_ca_cert, configuration.cert_file, configuration.key_file):
        # By content: a certificate is renewed in its place.
        digest.update(b"-" if not name else hashlib.sha256(Path(name).read_bytes()).digest())
    return Access(configuration, {"Authorization": token} if token else {}, digest.hexdigest(), number)
