"""Real nodes on this machine: containerd, runc, a bridge and a real kubelet each, on the tests' control plane.

Needs root. Everything is below one folder and named after it: ``close()`` leaves no process, mount, interface or
cgroup. No iptables rule is made: pods reach each other and the machine over the bridge, and nothing else.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from edl_agent.testing import PortReservation
from tests.bench.cluster_dns import DOMAIN
from tests.bench.container_images import PAUSE_IMAGE
from tests.bench.kube_control_plane import Component, KubeControlPlane, control_plane_missing
from tests.bench.kubelet_leftovers import (
    BRIDGE,
    CGROUP,
    cgroup_roots,
    kill_cgroup,
    kill_shims,
    remove_cgroup,
    unmount_below,
)
from tests.kube.controlplane.build import find_kubelet

PLUGINS = Path("/usr/lib/cni")
PROGRAMS = {"containerd": "containerd", "ctr": "containerd", "runc": "runc", "ip": "iproute2", "iptables": "iptables"}
"""Program -> the Debian package that holds it."""

API_SERVER_FLAGS = {"kube-apiserver": ["--kubelet-preferred-address-types=InternalIP"]}
"""For logs and exec."""


def missing_packages() -> list[str]:
    """The Debian packages that are not installed."""
    packages = {package for program, package in PROGRAMS.items() if shutil.which(program) is None}
    packages |= set() if (PLUGINS / "bridge").exists() else {"containernetworking-plugins"}
    return sorted(packages)


def nodes_missing() -> str | None:
    """Return why no real node can be started here, or ``None``."""
    if os.geteuid() != 0:
        return "nodes with real containers need root"
    if packages := missing_packages():
        return f"nodes with real containers need: apt-get install {' '.join(packages)}"
    if find_kubelet() is None:
        return "no kubelet: make test-containers builds it (needs Go)"
    return kernel_missing() or control_plane_missing()


@functools.cache
def kernel_missing() -> str | None:
    """Return what this machine's kernel, or the container that we are in, does not let us do; ``None``: nothing.

    As root, with the packages installed. Each thing that containers need is tried once and undone.
    """
    if not Path("/sys/fs/cgroup/cgroup.controllers").exists() and not Path("/sys/fs/cgroup/memory").is_dir():
        return "nodes with real containers need cgroups"
    name = f"edlp{os.getpid() % 10**8}"
    with tempfile.TemporaryDirectory(prefix="edl-probe-") as folder:
        for part in ("lower", "upper", "work", "merged"):
            (Path(folder) / part).mkdir()
        merged, layers = f"{folder}/merged", f"lowerdir={folder}/lower,upperdir={folder}/upper,workdir={folder}/work"
        tries = {
            "a bridge": (["ip", "link", "add", name, "type", "bridge"], ["ip", "link", "del", name]),
            "a pair of interfaces": (
                ["ip", "link", "add", name, "type", "veth", "peer", "name", f"{name}p"],
                ["ip", "link", "del", name],
            ),
            "namespaces": (["unshare", "--net", "--mount", "--pid", "--ipc", "--uts", "--fork", "true"], []),
            "an overlay": (["mount", "-t", "overlay", "-o", layers, "overlay", merged], ["umount", merged]),
        }
        for what, (make, undo) in tries.items():
            done = subprocess.run(make, capture_output=True, text=True, timeout=60, check=False)
            if done.returncode:
                return f"nodes with real containers need {what}, which cannot be made here: {done.stderr.strip()}"
            if undo:
                _run(*undo)
    for top in cgroup_roots():
        try:
            (top / name).mkdir()
            (top / name).rmdir()
        except OSError as error:
            return f"nodes with real containers need cgroups of their own, which cannot be made here: {error}"
    return None


class PodNetwork:
    """A bridge for the pods of all nodes: ``gateway`` is this machine's address on it."""

    def __init__(self) -> None:
        """Make it, with a subnet that this machine does not use."""
        self.name = BRIDGE.format(run=os.getpid())
        taken = _run("ip", "-4", "-o", "addr")
        second = next(n for n in range(os.getpid() % 50 + 100, 250) if f" 10.{n}." not in taken)
        self.prefix = f"10.{second}"
        self.gateway = f"{self.prefix}.0.1"
        _run("ip", "link", "add", self.name, "type", "bridge")
        _run("ip", "addr", "add", f"{self.gateway}/16", "dev", self.name)
        _run("ip", "link", "set", self.name, "up")

    def plugin(self, number: int, state: Path) -> dict[str, Any]:
        """The CNI configuration of node ``number`` (from 1 on)."""
        subnet, prefix = f"{self.prefix}.0.0/16", f"{self.prefix}.{number}"
        addresses = {
            "subnet": subnet,
            "rangeStart": f"{prefix}.10",
            "rangeEnd": f"{prefix}.250",
            "gateway": self.gateway,
        }
        ipam = {"type": "host-local", "dataDir": str(state), "ranges": [[addresses]], "routes": [{"dst": "0.0.0.0/0"}]}
        bridge = {"type": "bridge", "bridge": self.name, "isGateway": False, "ipMasq": False, "ipam": ipam}
        return {"cniVersion": "0.4.0", "name": self.name, "plugins": [bridge]}

    def close(self) -> None:
        """Remove it."""
        _run("ip", "link", "del", self.name, check=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class KubeletNode:
    """One node. ``start()`` returns when it is Ready."""

    def __init__(
        self, folder: Path, name: str, number: int, control_plane: KubeControlPlane, network: PodNetwork
    ) -> None:
        """``folder``: its state, short (sockets are in there). ``number``: from 1 on, of its pods' addresses."""
        folder.mkdir(parents=True)
        self.folder, self.name = folder, name
        self._control_plane, self._network = control_plane, network
        self._socket = folder / "c.sock"
        self._cgroup = f"{CGROUP.format(run=os.getpid())}{number}"
        self._ports = [PortReservation(network.gateway), PortReservation("127.0.0.1")]
        (folder / "cni").mkdir()
        plugin = network.plugin(number, folder / "addresses")
        (folder / "cni" / "10-bridge.conflist").write_text(json.dumps(plugin))
        (folder / "containerd.toml").write_text(self._containerd_config())
        # JSON is YAML, too.
        (folder / "kubelet.json").write_text(json.dumps(self._kubelet_config()))
        self.containerd = Component(
            f"{name} containerd",
            ["containerd", "--config", str(folder / "containerd.toml")],
            folder / "containerd.log",
            lambda: self.ctr("version", check=False) != "",
        )
        self.kubelet = Component(
            f"{name} kubelet",
            [
                str(find_kubelet()),
                f"--config={folder / 'kubelet.json'}",
                f"--kubeconfig={control_plane.kubeconfig}",
                f"--root-dir={folder / 'kubelet'}",
                f"--cert-dir={folder / 'kubelet-certificates'}",
                f"--hostname-override={name}",
                f"--node-ip={network.gateway}",
            ],
            folder / "kubelet.log",
            self._ready,
        )

    def start(self, archives: Sequence[Path]) -> Self:
        """Start, import images from docker archives, and wait until the node is Ready."""
        self._make_cgroups()
        self.containerd.start(30)
        for archive in archives:
            self.ctr("images", "import", str(archive))
        self.kubelet.start(90)
        return self

    def ctr(self, *arguments: str, check: bool = True) -> str:
        """Run ctr in Kubernetes' namespace and return what it printed."""
        return _run("ctr", "-a", str(self._socket), "-n", "k8s.io", *arguments, check=check)

    def kill_container(self, pod: str, container: str, number: str = "SIGKILL") -> None:
        """Send a signal to the container's first process, from outside, as the kernel would for memory."""
        filters = [f'labels."io.kubernetes.pod.name"=={pod}', f'labels."io.kubernetes.container.name"=={container}']
        running = {line.split()[0] for line in self.ctr("tasks", "ls").splitlines() if "RUNNING" in line}
        (identity,) = running & set(self.ctr("containers", "ls", "-q", ",".join(filters)).split())
        self.ctr("tasks", "kill", "-s", number, identity)

    def close(self) -> None:
        """End all its containers and processes, and remove what they left in the kernel."""
        self.kubelet.stop(10)
        if self.containerd.running:
            for line in self.ctr("tasks", "ls", "-q", check=False).split():
                self.ctr("tasks", "rm", "-f", line, check=False)
        self.containerd.stop(10)
        kill_shims(self.folder)
        kill_cgroup(self._cgroup)  # what containerd did not end, because it was killed itself
        unmount_below(self.folder)
        remove_cgroup(self._cgroup)
        for port in self._ports:
            port.close()

    def _ready(self) -> bool:
        answer = self._control_plane.client.call("GET", f"/api/v1/nodes/{self.name}")
        if answer.status != 200 or answer.body["spec"].get("taints"):
            return False
        conditions = {c["type"]: c["status"] for c in answer.body["status"].get("conditions", ())}
        return conditions.get("Ready") == "True"

    def _make_cgroups(self) -> None:
        for folder in (root / self._cgroup for root in cgroup_roots()):
            folder.mkdir(exist_ok=True)
            # A new cpuset is empty, and then nothing can run in it.
            for name in ("cpuset.cpus", "cpuset.mems"):
                if folder.parent.name == "cpuset":
                    (folder / name).write_text((folder.parent / name).read_text())

    def _containerd_config(self) -> str:
        folder, cri = self.folder, 'plugins."io.containerd.grpc.v1.cri"'
        unused = ("snapshotter.v1.aufs", "snapshotter.v1.btrfs", "snapshotter.v1.zfs", "snapshotter.v1.devmapper")
        return f"""
version = 2
root = "{folder}/containerd"
state = "{folder}/state"
disabled_plugins = {json.dumps([f"io.containerd.{name}" for name in (*unused, "tracing.processor.v1.otlp")])}
[grpc]
address = "{self._socket}"
[plugins."io.containerd.internal.v1.opt"]
path = "{folder}/opt"
[{cri}]
sandbox_image = "{PAUSE_IMAGE}"
restrict_oom_score_adj = true
netns_mounts_under_state_dir = true
[{cri}.cni]
bin_dir = "{PLUGINS}"
conf_dir = "{folder}/cni"
[{cri}.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[{cri}.containerd.runtimes.runc.options]
SystemdCgroup = false
"""

    def _kubelet_config(self) -> dict[str, Any]:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": self._network.gateway,
            "port": self._ports[0].port,
            "healthzPort": self._ports[1].port,
            # Whoever reaches the bridge may do all: for tests on this machine only.
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "containerRuntimeEndpoint": f"unix://{self._socket}",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self._cgroup}",
            "failCgroupV1": False,
            "failSwapOn": False,
            "enforceNodeAllocatable": ["pods"],
            "evictionHard": {"memory.available": "50Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
            "imageGCHighThresholdPercent": 100,
            "makeIPTablesUtilChains": False,
            "seccompDefault": True,
            "podLogsDir": str(self.folder / "pod-logs"),
            "volumePluginDir": str(self.folder / "volume-plugins"),
            "resolvConf": "",
            "clusterDNS": [self._network.gateway],
            "clusterDomain": DOMAIN,
            "nodeStatusUpdateFrequency": "2s",
            "syncFrequency": "10s",
        }


class KubeletNodes:
    """Several nodes on one bridge, on a control plane that was started with ``API_SERVER_FLAGS``."""

    def __init__(
        self, folder: Path, control_plane: KubeControlPlane, network: PodNetwork, names: Sequence[str]
    ) -> None:
        """Describe them; ``network`` is the caller's."""
        self.network = network
        self.nodes = {
            name: KubeletNode(folder / f"n{number}", name, number, control_plane, network)
            for number, name in enumerate(names, 1)
        }
        self.ready_seconds = 0.0

    def start(self, archives: Sequence[Path]) -> Self:
        """Start all, each with the images of these docker archives."""
        began = time.monotonic()
        with ThreadPoolExecutor() as threads:
            list(threads.map(lambda node: node.start(archives), self.nodes.values()))
        self.ready_seconds = time.monotonic() - began
        return self

    def close(self) -> None:
        """End all."""
        for node in self.nodes.values():
            node.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _run(*command: str, check: bool = True) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if check and done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout if done.returncode == 0 else ""
