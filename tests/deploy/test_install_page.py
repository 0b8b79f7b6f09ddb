"""docs/install.md: its commands for Kubernetes, typed as they stand, on a real API server."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.bench.kube_control_plane import KubeControlPlane
from tests.bench.kubectl import Kubectl
from tests.deploy.conftest import ROOT

BLOCKS = re.findall(r"^```sh kubectl\n(.*?)^```$", (ROOT / "docs/install.md").read_text(), re.DOTALL | re.MULTILINE)


def test_every_documented_command_does_what_it_says(kubectl: Kubectl, tmp_path: Path) -> None:
    """In a control plane of its own, which is as empty as a user's."""
    assert len(BLOCKS) == 6
    with KubeControlPlane(tmp_path / "kube") as fresh:
        environment = {**Kubectl(kubectl.program, fresh.kubeconfig, ROOT).environment, "OUT": str(tmp_path / "made")}
        for block in BLOCKS:
            # As written, but for where the certificates are kept: not in the checkout.
            script = block.replace("=etcd-certificates/", f"={tmp_path / 'made'}/")
            done = subprocess.run(
                ["/bin/sh", "-euxc", script], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120
            )
            assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"
        found = fresh.client.call("GET", "/apis/paddlepaddle.org/v1/trainingjobs")
        assert found.status == 404, "the last command removes the resource"


def test_the_readme_says_the_same() -> None:
    (block,) = re.findall(r"^```sh kubectl\n(.*?)^```$", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    told = [line.partition("  #")[0].strip() for line in block.splitlines()]
    run = [line.partition("  #")[0].strip() for one in BLOCKS for line in one.splitlines()]
    assert told[0] == "make images", "tests/containers begins with it"
    assert set(told[1:]) <= set(run)


def test_the_overlay_with_etcd_names_what_there_is(offline_kubectl: Kubectl) -> None:
    documents = offline_kubectl.documents("kustomize", "deploy/with-etcd")
    by_kind = {(one["kind"], one["metadata"]["name"]): one for one in documents}
    pod = by_kind["Deployment", "edl-controller"]["spec"]["template"]["spec"]
    args = pod["containers"][0]["args"]

    assert "--etcd-endpoints=https://edl-etcd.edl-system.svc:2379" in args
    assert by_kind["Service", "edl-etcd"]["metadata"]["namespace"] == "edl-system"
    assert by_kind["Service", "edl-etcd"]["spec"]["ports"][0]["port"] == 2379
    mounted = {mount["name"]: mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
    files = [value.split("=", 1)[1] for value in args if value.startswith(("--etcd-ca", "--etcd-cert", "--etcd-key"))]
    assert {str(Path(file).parent) for file in files} == set(mounted.values())
    secret = {volume["name"]: volume["secret"]["secretName"] for volume in pod["volumes"]}
    assert secret == {"etcd-identity": "edl-etcd-client"}


@pytest.mark.parametrize("folder", ["cluster", "namespaced", "with-etcd", "with-etcd-login"])
def test_the_programs_flags_are_known(offline_kubectl: Kubectl, folder: str, control_plane: KubeControlPlane) -> None:
    """The very arguments of the manifest, read by the program itself."""
    deployment = next(
        one for one in offline_kubectl.documents("kustomize", f"deploy/{folder}") if one["kind"] == "Deployment"
    )
    args = [
        value.replace("$(POD_NAMESPACE)", "training")
        for value in deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    ]
    assert args[0] == "run"
    program = [str(Path(sys.executable).with_name("edl-controller")), "settings"]
    done = subprocess.run(
        [*program, *args[1:], "--kubeconfig", str(control_plane.kubeconfig)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert yaml.safe_load(done.stdout)
