"""The controller's image where something is missing: it says what, in words for whoever has to put it right."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

from tests.bench.kube_control_plane import KubeControlPlane
from tests.bench.kube_http import Json, KubeHttpClient
from tests.bench.kubelet_node import KubeletNodes
from tests.bench.waiting import eventually
from tests.containers.installed_controller import ROOT, api_server
from tests.containers.pods import Pods, restricted

DEFINITION = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/trainingjobs.paddlepaddle.org"
BINDINGS = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
NAME = "controller"


class Controller:
    """A controller as a bare pod, under the namespace's default account."""

    def __init__(self, pods: Pods, image: str, api: str) -> None:
        """``api``: ``host:port`` of the API server, for pods."""
        self.pods, self._image, self._api = pods, image, api

    def start(self, *arguments: str, token: bool = True, config: str = "") -> None:
        """Start it. ``token``: of the account. ``config``: text of the file /config/kubeconfig."""
        place = {"name": "POD_NAMESPACE", "value": self.pods.namespace}
        more: dict[str, Any] = {"env": [*api_server(self._api), place]}
        volumes: list[dict[str, Any]] = []
        if config:
            maps = f"/api/v1/namespaces/{self.pods.namespace}/configmaps"
            self.pods.client.post(maps, {"metadata": {"name": "config"}, "data": {"kubeconfig": config}})
            # The official client writes certificates that are inline to temporary files.
            volumes = [{"name": "config", "configMap": {"name": "config"}}, {"name": "files", "emptyDir": {}}]
            paths = {"config": "/config", "files": "/tmp"}
            more["volumeMounts"] = [{"name": name, "mountPath": path} for name, path in paths.items()]
        words = ["run", "--http-bind=:8080", f"--namespace={self.pods.namespace}", *arguments]
        container = restricted("controller", self._image, args=words, **more)
        self.pods.create(NAME, self.pods.spec(container, volumes=volumes, automountServiceAccountToken=token))

    def log(self) -> str:
        """What it has said."""
        return self.pods.log(NAME)

    def wait_said(self, text: str, timeout: float = 60.0) -> None:
        """Wait (seconds) for words in its log."""
        eventually(lambda: text in self.log(), timeout, lambda: f"{text!r} in {self.log()}", interval=0.3)

    def runs(self) -> bool:
        """Whether it goes on, and never ended."""
        pod = self.pods.read(NAME)
        assert pod is not None
        (status,) = pod["status"]["containerStatuses"]
        return "running" in status["state"] and status["restartCount"] == 0


@pytest.fixture
def controller(
    pods: Pods, image: Callable[[str], str], api_address: str, control_plane: KubeControlPlane
) -> Iterator[Controller]:
    """Not started."""
    yield Controller(pods, image("edl-controller"), api_address)
    # Before all others: it would make them anew.
    pods.client.call("DELETE", f"{pods.path}/{NAME}", {"gracePeriodSeconds": 0})
    eventually(lambda: pods.read(NAME) is None, 60, "the controller is gone", interval=0.1)
    pods.client.call("DELETE", f"{BINDINGS}/{pods.namespace}")


def may_everything(pods: Pods) -> None:
    """Bind the namespace's default account to cluster-admin."""
    account = {"kind": "ServiceAccount", "name": "default", "namespace": pods.namespace}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
    pods.client.post(BINDINGS, {"metadata": {"name": pods.namespace}, "roleRef": role, "subjects": [account]})


def uninstall(client: KubeHttpClient) -> None:
    """Remove the definition, where it is."""
    client.call("DELETE", DEFINITION)
    eventually(lambda: client.call("GET", DEFINITION).status == 404, 60, "the definition is gone")
    served = "/apis/paddlepaddle.org/v1/trainingjobs"
    eventually(lambda: client.call("GET", served).status == 404, 60, "the resource is gone")


@pytest.mark.parametrize(
    ("arguments", "config", "said"),
    [
        (["--kubeconfig=/config/kubeconfig"], "", "no way to the API server in /config/kubeconfig"),
        ([], "", "no kubeconfig at"),
        (["--kubeconfig=/config/kubeconfig"], "contexts: 3\n", "no way to the API server in /config/kubeconfig"),
    ],
    ids=["no such file", "no account and no file", "not one"],
)
def test_without_a_way_to_the_api_server_it_ends_and_says_so(
    controller: Controller, arguments: list[str], config: str, said: str
) -> None:
    controller.start(*arguments, token=False, config=config)

    pod = controller.pods.wait_ended(NAME)

    assert pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 2, controller.log()
    assert said in controller.log()
    assert "Traceback" not in controller.log()


def test_with_a_token_that_is_refused_it_says_that_nobody_knows_it(
    controller: Controller, control_plane: KubeControlPlane, api_address: str
) -> None:
    authority = base64.b64encode(control_plane.ca.read_bytes()).decode()
    cluster = {"server": f"https://{api_address}", "certificate-authority-data": authority}
    config = {
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": {"token": "of-nobody"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    controller.start("--kubeconfig=/config/kubeconfig", token=False, config=yaml.safe_dump(config))

    controller.wait_said("Cannot watch trainingjobs")

    assert "401" in controller.log() or "nauthorized" in controller.log()
    assert "of-nobody" not in controller.log()
    assert "Traceback" not in controller.log()
    assert controller.runs()


def test_without_any_right_it_names_what_it_may_not(controller: Controller, definition: None) -> None:
    controller.start()

    controller.wait_said("Cannot watch trainingjobs")

    log = controller.log()
    assert "trainingjobs.paddlepaddle.org is forbidden" in log
    assert "cannot list resource" in log
    assert f"system:serviceaccount:{controller.pods.namespace}:default" in log
    assert "Traceback" not in log
    assert controller.runs()


def test_without_the_definition_it_says_how_to_install_it(
    controller: Controller, control_plane: KubeControlPlane
) -> None:
    uninstall(control_plane.client)
    may_everything(controller.pods)
    controller.start()

    controller.wait_said("the resource is not installed")

    assert "edl-controller crd | kubectl apply --server-side -f -" in controller.log()
    assert "Traceback" not in controller.log()
    assert controller.runs()


def test_without_etcd_it_says_which_one_does_not_answer(
    controller: Controller, definition: None, nodes: KubeletNodes, image: Callable[[str], str]
) -> None:
    may_everything(controller.pods)
    nowhere = f"http://{nodes.network.gateway}:1"
    controller.start(f"--etcd-endpoints={nowhere}")
    job = yaml.safe_load((ROOT / "deploy" / "samples" / "launcher.yaml").read_text())
    job["spec"] |= {"image": image("edl-digits"), "imagePullPolicy": "Never"}
    jobs = f"/apis/paddlepaddle.org/v1/namespaces/{controller.pods.namespace}/trainingjobs"
    controller.pods.client.post(jobs, job)

    controller.wait_said(f"The etcd {nowhere} cannot be read", 90)

    def unknown() -> list[Json]:
        status = controller.pods.client.get(f"{jobs}/launcher").get("status", {})
        return [one for one in status.get("conditions", ()) if one["type"] == "AgentStateKnown"]

    eventually(lambda: [one["status"] for one in unknown()] == ["False"], 60, lambda: f"the job says it: {unknown()}")
    assert "Traceback" not in controller.log()
    assert controller.runs()
