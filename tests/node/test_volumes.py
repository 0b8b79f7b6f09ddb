"""Volumes of every kind, with a mount namespace and without."""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import Any

import pytest

from edl_controller.api.configuration import ConfigMap, Secret
from edl_controller.api.meta import ObjectMeta
from edl_controller.machine.node.volumes import Refused, may_mount, relocated
from tests.bench.waiting import eventually
from tests.node.conftest import Room, of, shell

mounting = pytest.mark.skipif(not may_mount(), reason="this user may not mount")


@pytest.fixture
def objects(room: Room) -> None:
    room.cluster.create(ConfigMap(metadata=ObjectMeta(name="cm", namespace="default"), data={"a": "A", "b": "B"}))
    data = {"key": base64.b64encode(b"\xff\x00secret").decode()}
    room.cluster.create(Secret(metadata=ObjectMeta(name="s", namespace="default"), data=data))


@mounting
@pytest.mark.usefixtures("objects")
def test_every_volume_at_its_mount_path(room: Room, tmp_path: Path) -> None:
    room.start()
    host, at = tmp_path / "host", tmp_path / "at"
    script = (
        f"cd {at}; cat cm/a cm/deep/b; od -An -tx1 s/key; stat -c %a s/key; cat down/labels all/one all/name;"
        f"echo kept > shared/file; cat host/there; echo x > ro/file; ls sub; echo $EDL_VOLUME_SHARED"
    )
    mounts = [
        {"name": "cm", "mountPath": f"{at}/cm"},
        {"name": "s", "mountPath": f"{at}/s", "readOnly": True},
        {"name": "down", "mountPath": f"{at}/down"},
        {"name": "all", "mountPath": f"{at}/all"},
        {"name": "shared", "mountPath": f"{at}/shared"},
        {"name": "host", "mountPath": f"{at}/host"},
        {"name": "shared", "mountPath": f"{at}/ro", "readOnly": True},
        {"name": "host", "mountPath": f"{at}/sub", "subPath": "inner"},
    ]
    host.mkdir()
    (host / "there").write_text("of the host\n")
    (host / "inner").mkdir()
    (host / "inner" / "seen").touch()
    items = [{"key": "a", "path": "a"}, {"key": "b", "path": "deep/b"}]
    name = {"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}
    volumes: list[dict[str, Any]] = [
        {"name": "cm", "configMap": {"name": "cm", "items": items}},
        {"name": "s", "secret": {"secretName": "s", "defaultMode": 0o400}},
        {"name": "down", "downwardAPI": {"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}},
        {"name": "all", "projected": {"sources": [
            {"configMap": {"name": "cm", "items": [{"key": "a", "path": "one"}]}}, {"downwardAPI": {"items": [name]}},
        ]}},
        {"name": "shared", "emptyDir": {}},
        {"name": "host", "hostPath": {"path": str(host), "type": "Directory"}},
    ]  # fmt: skip
    reader = {**shell(f"sleep 0.3; cat {at}/shared/file"), "volumeMounts": mounts}
    room.run("p", {**shell(script), "volumeMounts": mounts}, reader, volumes=volumes, labels={"app": "x"})
    pod = room.until("p", lambda pod: pod.status.phase in ("Succeeded", "Failed"))
    lines = room.log(pod).splitlines()
    assert lines[0] == "AB ff 00 73 65 63 72 65 74"
    assert lines[1] == "400"
    assert lines[2] == 'app="x"Apof the host'
    assert "Read-only" in lines[3]
    assert lines[4:] == ["seen", f"{at}/shared"]
    assert room.log(pod, "c1") == "kept\n"
    eventually(lambda: not at.exists(), 5, "end of the mount points")


@mounting
def test_mount_points_in_use_stay(room: Room, tmp_path: Path) -> None:
    room.start()
    at = tmp_path / "new" / "deep"
    volume = {"volumes": [{"name": "v", "emptyDir": {}}]}
    mounts = {"volumeMounts": [{"name": "v", "mountPath": str(at)}]}
    slow = f"echo slow > {at}/x; sleep 1.2; cat {at}/x"
    room.run("slow", {**shell(slow), **mounts}, **volume)
    room.ready("slow")
    room.run("quick", {**shell(f"ls {at}"), **mounts}, **volume)
    assert room.log(room.phase("quick", "Succeeded")) == ""
    assert at.is_dir()
    assert list(at.iterdir()) == []  # nothing of it is seen from outside
    assert room.log(room.phase("slow", "Succeeded")) == "slow\n"
    eventually(lambda: not (tmp_path / "new").exists(), 5, "end of the mount points")


@mounting
def test_folders_of_the_user_stay_and_mounts_may_lie_in_mounts(room: Room, tmp_path: Path) -> None:
    room.start()
    at = tmp_path / "mine"
    at.mkdir()
    mounts = [{"name": "b", "mountPath": f"{at}/sub/b"}, {"name": "a", "mountPath": str(at)}]
    room.run(
        "p", {**shell(f"echo x > {at}/sub/b/f; ls -R {at} | tail -1; mount | grep -c {at}"), "volumeMounts": mounts},
        volumes=[{"name": "a", "emptyDir": {}}, {"name": "b", "emptyDir": {}}],
    )  # fmt: skip
    assert room.log(room.phase("p", "Succeeded")) == "f\n2\n"
    assert list(at.iterdir()) == []


@mounting
def test_a_volume_over_the_nodes_own_folder(room: Room, tmp_path: Path) -> None:
    """Such as an emptyDir at /tmp: the container still starts in its folder and its output still comes."""
    room.start()
    mounts = [{"name": "v", "mountPath": str(tmp_path)}, {"name": "w", "mountPath": f"{tmp_path}/w"}]
    volumes = [{"name": "v", "emptyDir": {}}, {"name": "w", "emptyDir": {}}]
    room.run("p", {**shell(f"ls {tmp_path}; touch here; echo well"), "volumeMounts": mounts}, volumes=volumes)
    assert room.log(room.phase("p", "Succeeded")) == "w\nwell\n"


@pytest.mark.usefixtures("objects")
def test_without_the_right_to_mount(room: Room, tmp_path: Path) -> None:
    room.start(mount=False)
    free, taken = tmp_path / "free" / "place", tmp_path / "taken"
    taken.mkdir()
    mounts = [{"name": "cm", "mountPath": str(free)}, {"name": "dir", "mountPath": str(taken)}]
    container = {**shell(f"cat {free}/a; echo; touch $EDL_VOLUME_DIR/x; ls {taken}"), "volumeMounts": mounts}
    volumes = [{"name": "cm", "configMap": {"name": "cm"}}, {"name": "dir", "emptyDir": {}}]
    room.run("p", container, volumes=volumes)
    assert room.log(room.phase("p", "Succeeded")) == "A\nx\n", "the folder takes the place of the path"
    assert [str(taken) in note for note in room.notes("VolumeNotAtMountPath")] == [True]
    room.delete("p")
    eventually(lambda: not os.path.lexists(free), 5, "end of the link")
    room.run("again", {**container, **shell("sleep 1000")}, volumes=volumes)
    room.ready("again")
    assert free.is_symlink()
    room.agent.stop(grace=0.0)
    assert not os.path.lexists(free)


def test_a_program_with_its_data_where_only_root_may_write(room: Room) -> None:
    """As that of a job's own etcd: it runs for a user, too."""
    room.start(mount=False)
    mounts = [{"name": "data", "mountPath": "/proc/data"}]
    variables = [{"name": "AT", "value": "/proc/data/b"}, {"name": "OTHER", "value": "/proc/database"}]
    script = 'mkdir "${1#--data-dir=}" && touch $AT && echo $OTHER'
    container = {
        "command": ["sh", "-c", script, "sh", "--data-dir=/proc/data/a"],
        "volumeMounts": mounts,
        "env": variables,
    }
    room.run("p", container, volumes=[{"name": "data", "emptyDir": {}}])
    pod = room.phase("p", "Succeeded")
    assert room.log(pod) == "/proc/database\n"
    folder = room.agent.root / "pods" / pod.metadata.uid / "volumes" / "data"
    assert sorted(path.name for path in folder.iterdir()) == ["a", "b"]


@pytest.mark.parametrize(
    ("text", "becomes"),
    [
        ("/data", "/v/1"),
        ("/data/", "/v/1/"),
        ("--dir=/data/a", "--dir=/v/1/a"),
        ("/data:/data/deep:/x", "/v/1:/v/2:/x"),
        ("cat '/data/a' > /data/deep/b", "cat '/v/1/a' > /v/2/b"),
        ("file:///data/x", "file:///data/x"),
        ("/database", "/database"),
        ("/data-2 /data.d", "/data-2 /data.d"),
        ("/var/data", "/var/data"),
        ("./data ../data", "./data ../data"),
        ("data", "data"),
    ],
)
def test_where_a_path_is_replaced(text: str, becomes: str) -> None:
    assert relocated(text, [Refused("/v/1", "/data", "no"), Refused("/v/2", "/data/deep", "no")]) == becomes
    assert relocated(text, []) == text


def test_a_host_path_needs_no_link(room: Room, tmp_path: Path) -> None:
    room.start(mount=False)
    path = tmp_path / "data"
    volume = {"name": "v", "hostPath": {"path": str(path), "type": "DirectoryOrCreate"}}
    mounts = [{"name": "v", "mountPath": str(path)}]
    room.run("p", {**shell(f"echo x > {path}/f"), "volumeMounts": mounts}, volumes=[volume])
    room.phase("p", "Succeeded")
    assert (path / "f").read_text() == "x\n"
    assert "VolumeNotAtMountPath" not in room.reasons()


@pytest.mark.parametrize(
    ("volume", "says"),
    [
        ({"hostPath": {"path": "/no/such", "type": ""}}, "/no/such"),
        ({"hostPath": {"path": "/etc/passwd", "type": "Directory"}}, "no Directory"),
        ({"hostPath": {"path": "/etc", "type": "File"}}, "no File"),
        ({"hostPath": {"path": "/etc", "type": "Socket"}}, "no Socket"),
        ({"configMap": {"name": "none"}}, "ConfigMap 'none' is not there"),
        ({"configMap": {"name": "cm", "items": [{"key": "none", "path": "x"}]}}, "key 'none'"),
        ({"configMap": {"name": "cm", "items": [{"key": "a", "path": "../../x"}]}}, "leaves the volume"),
        ({"persistentVolumeClaim": {"claimName": "x"}}, "not to be had on this machine"),
        ({"projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}, "serviceAccountToken"),
    ],
)
@pytest.mark.usefixtures("objects")
def test_a_volume_that_cannot_be_given(room: Room, volume: dict[str, Any], says: str) -> None:
    room.start()
    room.run("p", shell("true"), volumes=[{"name": "v", **volume}])
    eventually(lambda: any(says in note for note in room.notes("FailedMount")), 5, lambda: str(room.events))
    assert room.get("p").status.phase == "Pending"
    room.delete("p", grace=1)
    eventually(lambda: room.gone("p"), 5, "end of the pod")


def test_bad_mounts_are_said(room: Room) -> None:
    room.start()
    room.run("none", {**shell("true"), "volumeMounts": [{"name": "none", "mountPath": "/x"}]})
    escape = {"name": "v", "mountPath": "/x", "subPath": "../.."}
    room.run("escape", {**shell("true"), "volumeMounts": [escape]}, volumes=[{"name": "v", "emptyDir": {}}])
    for name, says in (("none", "no volume of the pod"), ("escape", "leaves volume")):
        waiting = of(
            room.until(name, lambda pod: getattr(of(pod, "c0").state.waiting, "message", "")), "c0"
        ).state.waiting
        assert waiting is not None
        assert says in waiting.message


def test_an_empty_dir_survives_the_container_but_not_the_pod(room: Room) -> None:
    room.start()
    script = "[ -e $EDL_VOLUME_V/f ] && exit 0; touch $EDL_VOLUME_V/f; exit 1"
    mounts = [{"name": "v", "mountPath": "/edl-test-volume"}]
    room.run("p", {**shell(script), "volumeMounts": mounts}, volumes=[{"name": "v", "emptyDir": {}}],
             restartPolicy="OnFailure")  # fmt: skip
    pod = room.phase("p", "Succeeded")
    assert of(pod, "c0").restart_count == 1
    room.delete("p")
    eventually(lambda: not (room.agent.root / "pods" / pod.metadata.uid).exists(), 5, "end of the folder")
