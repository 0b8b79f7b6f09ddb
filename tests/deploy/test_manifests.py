"""What the manifests say: least privilege, names that belong together, one version."""

from __future__ import annotations

import base64
import importlib.metadata
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509

from edl_agent import EtcdClient
from edl_agent.etcd.identity import TlsFiles
from edl_agent.testing import EtcdServer
from edl_controller.api.submission import read
from tests.bench.kubectl import Kubectl
from tests.deploy.conftest import ROOT

Json = dict[str, Any]
FOLDERS = ("deploy/cluster", "deploy/namespaced", "deploy/etcd")


def _kind(documents: list[Json], kind: str, name: str = "") -> Json:
    found = [one for one in documents if one["kind"] == kind and name in ("", one["metadata"]["name"])]
    assert len(found) == 1, f"{kind} {name}: {len(found)}"
    return found[0]


def rules_of(documents: list[Json], *names: str) -> list[Json]:
    return [
        rule
        for one in documents
        if one["kind"] in ("Role", "ClusterRole") and one["metadata"]["name"] in names
        for rule in one["rules"]
    ]


def granted_rights(rules: list[Json]) -> set[tuple[str, str, str]]:
    return {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def _selected(selector: Json, labels: Json) -> bool:
    assert not set(selector) - {"matchLabels"}
    return bool(selector["matchLabels"].items() <= labels.items())


def test_the_schema_is_that_of_the_package() -> None:
    assert (ROOT / "deploy/cluster/crd.yaml").read_text() == (ROOT / "edl_controller/api/crd.yaml").read_text()


@pytest.mark.parametrize("folder", ["deploy/cluster", "deploy/namespaced"])
@pytest.mark.security(7)
def test_no_right_goes_beyond_what_a_controller_of_jobs_needs(offline_kubectl: Kubectl, folder: str) -> None:
    documents = offline_kubectl.documents("kustomize", folder)
    for group, resource, verb in granted_rights(rules_of(documents, "edl-controller")):
        assert "*" not in (group, resource, verb)
        assert resource not in ("secrets", "configmaps", "pods/exec", "serviceaccounts", "roles", "clusterroles")
        assert verb not in ("escalate", "bind", "impersonate", "deletecollection", "update") or (
            (resource, verb) == ("trainingjobs/finalizers", "update")
        )


@pytest.mark.security(7)
def test_one_namespace_needs_no_right_in_the_cluster(offline_kubectl: Kubectl) -> None:
    everywhere = offline_kubectl.documents("kustomize", "deploy/cluster")
    here = offline_kubectl.documents("kustomize", "deploy/namespaced")

    assert not [one["kind"] for one in here if one["kind"] in ("ClusterRole", "ClusterRoleBinding", "Namespace")]
    assert {one["metadata"]["namespace"] for one in here} == {"training"}
    nodes = {("", "nodes", "list"), ("", "nodes", "watch")}
    assert (
        granted_rights(rules_of(here, "edl-controller"))
        == granted_rights(rules_of(everywhere, "edl-controller")) - nodes
    )
    args = _kind(here, "Deployment")["spec"]["template"]["spec"]["containers"][0]["args"]
    assert args[-1] == "--namespace=$(POD_NAMESPACE)"


@pytest.mark.parametrize(
    ("folder", "kind"),
    [("deploy/cluster", "Deployment"), ("deploy/namespaced", "Deployment"), ("deploy/etcd", "StatefulSet")],
)
def test_budget_policy_and_services_select_the_pods(offline_kubectl: Kubectl, folder: str, kind: str) -> None:
    documents = offline_kubectl.documents("kustomize", folder)
    template = _kind(documents, kind)["spec"]["template"]
    labels, container = template["metadata"]["labels"], template["spec"]["containers"][0]
    ports = {port["name"] for port in container["ports"]}

    assert _selected(_kind(documents, "PodDisruptionBudget")["spec"]["selector"], labels)
    policy = _kind(documents, "NetworkPolicy")["spec"]
    assert _selected(policy["podSelector"], labels)
    assert {one["port"] for rule in policy["ingress"] for one in rule["ports"]} <= ports
    for service in (one for one in documents if one["kind"] == "Service"):
        assert service["spec"]["selector"].items() <= labels.items()
        assert {one.get("targetPort", one["name"]) for one in service["spec"]["ports"]} <= ports
    probes = [container[name] for name in ("startupProbe", "livenessProbe", "readinessProbe")]
    assert {probe["httpGet"]["port"] for probe in probes} <= ports


@pytest.mark.parametrize("folder", FOLDERS)
def test_pods_are_restricted(offline_kubectl: Kubectl, folder: str) -> None:
    for one in offline_kubectl.documents("kustomize", folder):
        if one["kind"] not in ("Deployment", "StatefulSet"):
            continue
        spec = one["spec"]["template"]["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["runAsUser"] == 65532
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in spec["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert {"cpu", "memory"} <= container["resources"]["requests"].keys()


def test_the_version_is_that_of_the_package(offline_kubectl: Kubectl) -> None:
    version = importlib.metadata.version("edl")
    for folder in ("deploy/cluster", "deploy/namespaced"):
        deployment = _kind(offline_kubectl.documents("kustomize", folder), "Deployment")
        assert deployment["spec"]["template"]["spec"]["containers"][0]["image"] == f"edl-controller:{version}"
    for sample in ("library", "launcher", "sidecar"):
        assert f"image: edl-digits:{version}" in (ROOT / f"deploy/samples/{sample}.yaml").read_text()


@pytest.mark.parametrize("path", sorted((ROOT / "deploy/samples").iterdir()), ids=lambda path: path.stem)
def test_samples_are_valid(path: Path) -> None:
    assert read(path.read_bytes())


def test_a_folder_that_cannot_be_made_is_an_error() -> None:
    """And not the end of a pipe that `kubectl apply` takes for nothing to do."""
    script, environment = ROOT / "deploy/etcd/certificates.sh", {"PATH": "/usr/bin:/bin", "OUT": "/dev/null/x"}
    printed = subprocess.run([script], env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert printed.returncode != 0
    assert "/dev/null" in printed.stderr
    assert printed.stdout == ""


def test_the_certificates_serve_a_real_etcd(tmp_path: Path) -> None:
    """The printed Secrets hold what a server and a client need, and the second run changes nothing."""
    environment = {**os.environ, "OUT": str(tmp_path / "certificates"), "NAMESPACE": "edl-system"}
    script = ROOT / "deploy/etcd/certificates.sh"

    def run() -> str:
        return subprocess.run([script], env=environment, capture_output=True, text=True, check=True, timeout=60).stdout

    printed = run()
    assert run() == printed
    folder = tmp_path / "certificates"
    assert {path.name for path in folder.iterdir() if path.stat().st_mode & 0o077} == set(), "others can read"
    secrets = {one["metadata"]["name"]: one for one in yaml.safe_load_all(printed) if one}
    assert set(secrets) == {"edl-etcd-server", "edl-etcd-client"}
    paths = {}
    for name, secret in secrets.items():
        for key, value in secret["data"].items():
            paths[name, key] = tmp_path / f"{name}-{key}"
            paths[name, key].write_bytes(base64.b64decode(value))
    server = {key: str(path) for (name, key), path in paths.items() if name == "edl-etcd-server"}
    # A member refuses a peer whose address no name in its certificate leads to; a wildcard needs DNS of addresses.
    names = x509.load_pem_x509_certificate(Path(server["tls.crt"]).read_bytes()).extensions
    written = names.get_extension_for_class(x509.SubjectAlternativeName).value.get_values_for_type(x509.DNSName)
    (members,) = (one for one in yaml.safe_load_all((ROOT / "deploy/etcd/stateful-set.yaml").read_text()))
    for number in range(members["spec"]["replicas"]):
        assert f"edl-etcd-{number}.edl-etcd-members.edl-system.svc" in written
    client = {key: str(path) for (name, key), path in paths.items() if name == "edl-etcd-client"}
    flags = ["--client-cert-auth", f"--trusted-ca-file={server['ca.crt']}"]
    flags += [f"--cert-file={server['tls.crt']}", f"--key-file={server['tls.key']}"]
    tls = TlsFiles(ca=client["ca.crt"], cert=client["tls.crt"], key=client["tls.key"])
    with (
        EtcdServer(tls_flags=flags) as etcd,
        EtcdClient(etcd.client_url.replace("127.0.0.1", "localhost"), num_pservers=1, tls=tls) as agent,
    ):
        agent.put_key("/k", b"v", timeout=10)
        assert agent.get_key("/k", timeout=10) == b"v"
