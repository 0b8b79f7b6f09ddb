"""A real Kubernetes control plane on loopback: etcd, API server, controller manager, scheduler. No kubelet."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import urllib3

from edl_agent.testing import (
    EtcdBinaries,
    EtcdNotFoundError,
    EtcdServer,
    PortReservation,
    binaries_in,
    spawn_bound_to_parent,
)
from tests.bench.certificates import LOCAL_NAMES, CertificateFolder, jwt_keys
from tests.bench.etcd_versions import binaries
from tests.bench.kube_http import KubeHttpClient, UnexpectedAnswerError
from tests.bench.waiting import eventually
from tests.kube.controlplane.build import VERSION, find_programs

ADMIN_TOKEN = "admin-token-5e0d"


class ControlPlaneError(RuntimeError):
    """A component did not start or did not become healthy in time; the message ends with its last log lines."""


def control_plane_missing() -> str | None:
    """Return why no control plane can be started on this machine, or ``None``."""
    if find_programs() is None:
        return f"no Kubernetes {VERSION} programs: make kube-control-plane (needs Go), or set KUBEBUILDER_ASSETS"
    try:
        _etcd_binaries()
    except EtcdNotFoundError as error:
        return str(error)
    return None


def _etcd_binaries() -> EtcdBinaries:
    # Below 3.4 and 3.5.1 some watches of the API server end with "RequestWatchProgress is disabled".
    folder = find_programs()
    if folder is not None and (folder / "etcd").is_file():
        return binaries_in(folder, "beside kube-apiserver")
    return binaries("3.6")


class Component:
    """One program of the control plane as a process of its own, with its log in a file."""

    def __init__(self, name: str, argv: Sequence[str], log: Path, healthy: Callable[[], bool] | None = None) -> None:
        """``healthy`` says whether it serves; None where it cannot be asked, then a running process will do."""
        self.name, self.argv, self.log_path = name, list(argv), log
        self._healthy = healthy
        self._process: subprocess.Popen[Any] | None = None
        self._log: IO[bytes] | None = None

    @property
    def running(self) -> bool:
        """Whether the process exists (also when it is paused)."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int | None:
        """Process id while it runs, else None."""
        return self._process.pid if self._process is not None and self.running else None

    def launch(self) -> None:
        """Start the process without waiting. Raises ControlPlaneError where it runs already."""
        if self.running:
            raise ControlPlaneError(f"{self.name} runs already")
        self._close_log()
        self._log = self.log_path.open("ab")
        self._process = spawn_bound_to_parent(
            self.argv, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log, start_new_session=True
        )

    def wait_healthy(self, timeout: float = 60.0) -> None:
        """Wait (seconds) until it serves. Raises ControlPlaneError with the end of its log."""
        deadline = time.monotonic() + timeout
        while not (self.running if self._healthy is None else self._healthy()):
            if not self.running:
                raise ControlPlaneError(f"{self.name} ended:\n{self.log_tail()}")
            if time.monotonic() > deadline:
                raise ControlPlaneError(f"{self.name} was not healthy within {timeout} s:\n{self.log_tail()}")
            time.sleep(0.05)

    def start(self, timeout: float = 60.0) -> Self:
        """Start, and wait (seconds) until it serves."""
        self.launch()
        self.wait_healthy(timeout)
        return self

    def stop(self, timeout: float = 20.0) -> None:
        """SIGTERM, and wait (seconds) for the end; SIGKILL after that. Nothing happens where it does not run."""
        if self.running:
            self.resume()
        self._end(signal.SIGTERM, timeout)

    def kill(self) -> None:
        """SIGKILL, and wait for the end. Nothing happens where it does not run."""
        self._end(signal.SIGKILL, 10.0)

    def restart(self) -> None:
        """Stop where it runs, start again on the same port."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """SIGSTOP: it hangs, its sockets stay open."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def log_tail(self, lines: int = 15) -> str:
        """The last lines of its log."""
        with contextlib.suppress(OSError):
            return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])
        return ""

    def _end(self, number: signal.Signals, timeout: float) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)
            try:
                self._process.wait(timeout)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(10.0)
        self._close_log()

    def _close_log(self) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None


class KubeControlPlane:
    """A cluster's brain in ``folder``: certificates, keys, tokens, data and logs are all in there.

    ``start()`` or ``with`` starts it in about 4 s; every component can be killed, paused and restarted by itself, on
    the same port. Only loopback is served.
    """

    def __init__(
        self,
        folder: Path,
        *,
        flags: Mapping[str, Sequence[str]] | None = None,
        tokens: Mapping[str, tuple[str, str]] | None = None,
        names: Sequence[str] = (),
    ) -> None:
        """Describe one; nothing is started yet.

        Args:
            folder: made where it is not there.
            flags: more flags by program name (``kube-apiserver``); the last of two equal ones wins.
            tokens: more bearer tokens: token -> (user, group).
            names: further hosts and addresses by which its API server is reached (through a proxy): they are in its
                certificate.

        Raises:
            ControlPlaneError: there are no programs on this machine.
        """
        if (reason := control_plane_missing()) is not None:
            raise ControlPlaneError(reason)
        programs = find_programs()
        assert programs is not None
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.token = ADMIN_TOKEN
        self._port = PortReservation()
        self.url = f"https://{self._port.address}"
        certificates = CertificateFolder(folder / "certificates")
        self.ca = certificates.ca
        server = certificates.authority.issue("server", names=(*LOCAL_NAMES, *names))
        keys = jwt_keys(folder / "service-account")
        known = {ADMIN_TOKEN: ("admin", "system:masters"), **(tokens or {})}
        token_file = folder / "tokens.csv"
        token_file.write_text("".join(f"{t},{user},{user},{group}\n" for t, (user, group) in known.items()))
        self.kubeconfig = folder / "kubeconfig"
        # JSON is YAML, too.
        self.kubeconfig.write_text(json.dumps(self._kubeconfig()))
        self.etcd = EtcdServer(binaries=_etcd_binaries(), name="kube-etcd", folder=folder)
        self.client = self.client_for(self.token)
        extra = flags or {}

        def component(name: str, own: Sequence[str], healthy: Callable[[], bool] | None = None) -> Component:
            return Component(name, [str(programs / name), *own, *extra.get(name, ())], folder / f"{name}.log", healthy)

        self.apiserver = component(
            "kube-apiserver",
            [
                f"--etcd-servers={self.etcd.client_url}",
                "--bind-address=127.0.0.1",
                "--advertise-address=127.0.0.1",
                f"--secure-port={self._port.port}",
                f"--cert-dir={folder}",
                f"--tls-cert-file={server.cert}",
                f"--tls-private-key-file={server.key}",
                "--service-account-issuer=https://kubernetes.default.svc",
                f"--service-account-key-file={keys.cert}",
                f"--service-account-signing-key-file={keys.key}",
                f"--token-auth-file={token_file}",
                "--authorization-mode=RBAC",
                "--service-cluster-ip-range=10.96.0.0/16",
                "--endpoint-reconciler-type=none",
                "--profiling=false",
                # As on OpenShift: who makes objects that block an owner's deletion needs a right to the owner.
                "--enable-admission-plugins=OwnerReferencesPermissionEnforcement",
            ],
            self._api_ready,
        )
        client_flags = [
            f"--kubeconfig={self.kubeconfig}",
            f"--authentication-kubeconfig={self.kubeconfig}",
            f"--authorization-kubeconfig={self.kubeconfig}",
            "--leader-elect=false",
            "--secure-port=0",
            "--kube-api-qps=300",
            "--kube-api-burst=600",
        ]
        self.controller_manager = component(
            "kube-controller-manager",
            [*client_flags, f"--service-account-private-key-file={keys.key}", f"--root-ca-file={self.ca}"],
        )
        self.scheduler = component("kube-scheduler", client_flags)
        self.components = (self.apiserver, self.controller_manager, self.scheduler)

    def client_for(self, token: str) -> KubeHttpClient:
        """A client with another identity's bearer token."""
        return KubeHttpClient(self.url, self.ca, token)

    def start(self, timeout: float = 60.0) -> Self:
        """Start all and wait (seconds) until pods can be created. Raises ControlPlaneError, EtcdServerError."""
        self.etcd.start(timeout)
        # The API server keeps changes from its start on; with these before it, it does not keep version "1".
        for _ in range(3):
            self.etcd.etcdctl("put", "/before-kubernetes", "x")
        self.apiserver.start(timeout)
        self.controller_manager.start(timeout)
        self.scheduler.start(timeout)
        try:
            # Admission refuses pods in a namespace before its service account is there, which the controller manager
            # makes.
            eventually(
                lambda: self.client.call("GET", "/api/v1/namespaces/default/serviceaccounts/default").status == 200,
                timeout,
                "the default service account",
                interval=0.05,
            )
        except AssertionError as error:
            raise ControlPlaneError(f"{error}\n{self.controller_manager.log_tail()}") from error
        return self

    def stop(self) -> None:
        """End everything; data and logs stay in the folder. Idempotent.

        The programs are killed: what they would tidy up is thrown away.
        """
        for part in (self.scheduler, self.controller_manager, self.apiserver, self.etcd):
            part.kill()
        self.client.close()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """``stop()``, and give the ports back; it cannot be started again."""
        self.stop()
        self.etcd.close()
        self._port.close()

    def _api_ready(self) -> bool:
        try:
            return self.client.call("GET", "/readyz").status == 200
        except (urllib3.exceptions.HTTPError, UnexpectedAnswerError):
            return False

    def _kubeconfig(self) -> dict[str, Any]:
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "tests", "cluster": {"server": self.url, "certificate-authority": str(self.ca)}}],
            "users": [{"name": "admin", "user": {"token": self.token}}],
            "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": "admin"}}],
            "current-context": "tests",
        }
