"""Secrets that the controller is given, told to nobody; and text of users and servers that would break lines of a log.

The program runs at debug level before a real API server while all that has to do with secrets fails once.
"""

from __future__ import annotations

import base64
import json
import logging
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edl_controller import errors
from edl_controller.api.kinds import CONFIG_MAPS, SECRETS
from edl_controller.cluster.kube import KubeCluster, kubeconfig
from edl_controller.runtime.logs import TextFormatter
from tests.bench.controller_process import PROGRAM, ControllerProcess
from tests.bench.etcd_cluster import EtcdCluster
from tests.bench.kube_control_plane import KubeControlPlane
from tests.bench.kube_proxy import KubeProxy, kubeconfig_for
from tests.bench.waiting import eventually
from tests.kube.controller_bench import DEADLINE, ControllerBench

WORD = "canary-5c1e77"
"""Occurs nowhere but in secrets."""
PASSWORD = "canary-password-0d4b"


def user_config(proxy: KubeProxy, folder: Path, user: dict[str, Any], name: str = "config") -> Path:
    """A kubeconfig with this user."""
    config = json.loads(kubeconfig_for(proxy, folder, "unused").read_text())
    config["users"][0]["user"] = user
    path = folder / name
    path.write_text(json.dumps(config))
    return path


def plugin(script: str) -> dict[str, Any]:
    """A user whose token comes from a program."""
    return {
        "exec": {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": sys.executable,
            "args": ["-c", script],
            "env": [{"name": "PLUGIN_SECRET", "value": WORD}],
            "interactiveMode": "Never",
        }
    }


@pytest.mark.security(21)
@pytest.mark.security(22)
def test_the_program_tells_no_token_and_no_password(
    bench: ControllerBench,
    control_plane: KubeControlPlane,
    kube_proxy: KubeProxy,
    namespace: str,
    etcd_factory: Callable[..., EtcdCluster],
    tmp_path: Path,
) -> None:
    cluster = etcd_factory(auth_token=("simple", 300), flags=["--bcrypt-cost=4"])
    cluster.enable_auth("edl-controller", PASSWORD, prefix="/edl/jobs")
    file = tmp_path / "password"
    file.write_text(f"{WORD}\n")  # a wrong one at first
    page = f"<html>{WORD} Authorization: Bearer {WORD}</html>".encode()
    for code in (401, 403, 500):
        for verb, resource in (("list", "*"), ("watch", "*"), ("create", "events"), ("*", "leases")):
            kube_proxy.fail(code, verb, resource, body=page)
    kube_proxy.fail(500, "create", "replicasets", body=page)
    kube_proxy.fail(502, "patch", "trainingjobs/status", body=page)
    with ControllerProcess(
        "--kubeconfig", str(kubeconfig_for(kube_proxy, tmp_path, control_plane.token)), "--namespace", namespace,
        "--lease-namespace", namespace, "--log-level", "debug", "--etcd-endpoints", cluster.endpoint_string,
        "--etcd-user", "edl-controller", "--etcd-password-file", str(file), "--etcd-unsafe-plaintext-password",
    ) as program:  # fmt: skip
        shown = Path(f"/proc/{program.pid}/cmdline").read_text()
        program.wait_ready(90).wait_leading()
        bench.create("tj", trainers=1, most=1, etcd={"mode": "External"})
        eventually(lambda: bench.job("tj").get("status", {}).get("phase"), DEADLINE, "it is looked after")
        eventually(
            lambda: re.search("authentication|invalid user", json.dumps(bench.job("tj"))),
            DEADLINE,
            lambda: f"the password is refused: {bench.job('tj')['status']['conditions']}",
        )
        file.write_text(PASSWORD)
        kube_proxy.fail(422, "create", "jobs", body=page)
        pages = "".join(program.get(path).text for path in ("/healthz", "/readyz", "/metrics"))
        assert any("debug" in line["level"] for line in program.lines)
        assert program.terminate() == 0
    objects = json.dumps([bench.client.get(f"{bench.core}/events"), bench.job("tj"), bench.children()])
    for secret in (WORD, PASSWORD, control_plane.token, "Bearer "):
        for title, text in (("output", program.output), ("pages", pages), ("objects", objects), ("cmdline", shown)):
            assert secret not in text, (title, [line for line in text.splitlines() if secret in line][:3])


FILES: dict[str, Callable[[KubeProxy, Path], Path]] = {
    "a token that is refused": lambda proxy, folder: user_config(proxy, folder, {"token": WORD}),
    "user and password": lambda proxy, folder: user_config(proxy, folder, {"username": "u", "password": WORD}),
    "a key that is none": lambda proxy, folder: user_config(
        proxy,
        folder,
        {
            "client-certificate-data": base64.b64encode(b"no certificate").decode(),
            "client-key-data": base64.b64encode(WORD.encode()).decode(),
        },
    ),
    "data that are no base64": lambda proxy, folder: user_config(proxy, folder, {"client-key-data": f"{WORD}!"}),
    "a plugin that fails": lambda proxy, folder: user_config(
        proxy, folder, plugin(f"import sys; print('{WORD}'); sys.exit(1)")
    ),
    "a plugin that prints no JSON": lambda proxy, folder: user_config(proxy, folder, plugin(f"print('{WORD}')")),
    "a plugin of another version": lambda proxy, folder: user_config(
        proxy,
        folder,
        plugin(f"""print('{{"apiVersion":"v0","kind":"ExecCredential","status":{{"token":"{WORD}"}}}}')"""),
    ),
    "no YAML": lambda _, folder: written(folder, f"users: [{{name: u, user: {{token: {WORD}: }}]"),
    "YAML of another form": lambda _, folder: written(folder, f"users: {{token: {WORD}}}\ncontexts: [{WORD}]\n"),
}


def written(folder: Path, text: str) -> Path:
    """A file with this text."""
    path = folder / "config"
    path.write_text(text)
    return path


@pytest.mark.security(21)
@pytest.mark.parametrize("title", FILES)
def test_a_kubeconfig_is_not_repeated(
    title: str, kube_proxy: KubeProxy, tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: Any
) -> None:
    """Neither by the program with tracebacks on, nor by the cluster's errors with all their causes."""
    caplog.set_level(logging.DEBUG)
    path = FILES[title](kube_proxy, tmp_path)
    told = ""
    with KubeCluster(kubeconfig(path)) as cluster:
        for kind in (CONFIG_MAPS, SECRETS):
            with pytest.raises(errors.ClusterError) as caught:
                cluster.list(kind, "default")  # type: ignore[misc]
            error: BaseException | None = caught.value
            while error is not None:
                told += f"{error} {error!r} {vars(error)}\n"
                error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        told += f"{cluster!r}"
    arguments = ["run", "--kubeconfig", str(path), "--debug", "--log-level", "debug", "--http-bind", "127.0.0.1:0"]
    with subprocess.Popen(
        [str(PROGRAM), *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            said, _ = process.communicate(timeout=5)
        except subprocess.TimeoutExpired:
            process.terminate()
            said, _ = process.communicate(timeout=60)
    assert said.strip()
    output = capfd.readouterr()
    for what, text in (("errors", told), ("program", said), ("log", caplog.text), ("streams", output.out + output.err)):
        assert WORD not in text, (what, [line for line in text.splitlines() if WORD in line][:3])


@pytest.mark.security(24)
def test_what_users_and_servers_write_stays_one_line(
    bench: ControllerBench, kube_proxy: KubeProxy, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    evil = "x\n2026-01-01T00:00:00.000Z CRITICAL all is lost\r\x1b[2J\x1b]0;title\x07\u202e\u2028y"
    kube_proxy.fail(422, "create", "jobs", reason="Invalid", message=evil, times=3)
    kube_proxy.fail(403, "create", "replicasets", reason="Forbidden", message=evil, times=1)
    made = bench.create("tj", trainers=1, most=1)
    bench.client.patch(f"{bench.training_jobs_path}/tj", {"metadata": {"annotations": {"example.com/a": evil}}})
    bench.start()
    bad = {"trainer": {"entrypoint": evil, "min-instance": 1, "resources": {"limits": {f"cpu{evil}": "1"}}}}
    body = {**made, "metadata": {"name": "bad"}, "spec": {**made["spec"], **bad}}
    assert bench.client.call("POST", bench.training_jobs_path, body).status == 201
    eventually(lambda: bench.condition("bad", "Invalid")[0] == "True", DEADLINE, "what is wrong is said")
    eventually(
        lambda: [one for one in bench.client.get(f"{bench.core}/events")["items"] if "lost" in one["message"]], 60
    )
    eventually(lambda: "all is lost" in caplog.text, DEADLINE, "it is logged")
    shown = [
        *(one["message"] for one in bench.client.get(f"{bench.core}/events")["items"]),
        *(one.get("message", "") for name in ("tj", "bad") for one in bench.job(name)["status"].get("conditions", [])),
    ]
    assert [text for text in shown if not text.isprintable()] == []
    formatter = TextFormatter()
    lines = [line for one in caplog.records if one.name.startswith("edl") for line in formatter.format(one).split("\n")]
    assert [one for one in lines if not one.isprintable() or not re.match(r"\d{4}-\d\d-\d\dT|    ", one)] == []
