"""The etcd of one machine: found, started, bound to its starter, stopped, started again with its data."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from edl_controller.api.configuration import ConfigMap
from edl_controller.api.kinds import CONFIG_MAPS
from edl_controller.api.meta import ObjectMeta
from edl_controller.cluster.local.cluster import LocalCluster
from edl_controller.errors import MissingExtra, Unavailable
from edl_controller.machine.etcd import LocalEtcd
from tests.bench.waiting import eventually
from tests.node.conftest import processes_with

PROGRAM = """
import sys, time
from pathlib import Path
from edl_controller.machine.etcd import LocalEtcd
with LocalEtcd(Path(sys.argv[1])) as etcd:
    print(etcd.pid, flush=True)
    time.sleep(1000)
"""


def test_data_stays_over_a_stop(tmp_path: Path) -> None:
    folder = tmp_path / "etcd"
    etcd = LocalEtcd(folder)
    with pytest.raises(Unavailable):
        _ = etcd.endpoint
    for round_ in range(2):
        with etcd:
            command = Path(f"/proc/{etcd.pid}/cmdline").read_bytes().decode()
            assert "--auto-compaction-retention=5m" in command
            assert "--unsafe-no-fsync" not in command
            assert "://127.0.0.1:" in etcd.endpoint
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
            with LocalCluster(etcd.endpoint) as cluster:
                if round_ == 0:
                    cluster.create(ConfigMap(metadata=ObjectMeta(name="kept", namespace="default"), data={"a": "b"}))
                else:
                    assert cluster.get(CONFIG_MAPS, "default", "kept").data == {"a": "b"}
        assert etcd.pid is None
        assert not processes_with(str(folder))


def test_it_ends_with_its_starter(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", PROGRAM, str(tmp_path / "etcd")]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        os.kill(process.pid, signal.SIGKILL)
    eventually(lambda: not Path(f"/proc/{pid}").exists(), 5, "end of etcd")


def test_what_is_missing_or_broken_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDL_ETCD_BIN", str(tmp_path))
    with pytest.raises(MissingExtra, match="no etcd"):
        LocalEtcd(tmp_path / "a").start()
    broken = tmp_path / "etcd"
    broken.write_text(
        "#!/bin/sh\n[ \"$1\" = --version ] && echo 'etcd Version: 3.5.1' && exit 0\necho no disk; exit 1\n"
    )
    broken.chmod(0o755)
    with pytest.raises(Unavailable, match="no disk"):
        LocalEtcd(tmp_path / "b").start()


def test_it_is_started_again_where_it_ends_by_itself(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    etcd = LocalEtcd(tmp_path / "etcd")
    with etcd, LocalCluster(etcd.endpoint) as cluster:
        cluster.create(ConfigMap(metadata=ObjectMeta(name="kept", namespace="default"), data={"a": "b"}))
        for _ in range(2):
            before = etcd.pid
            assert before is not None
            os.kill(before, signal.SIGKILL)
            eventually(lambda before=before: etcd.pid not in (None, before), 20, "another etcd")  # type: ignore[misc]
            data = eventually(lambda: _read(cluster), 20, "it answers")
            assert data == {"a": "b"}
    assert [record.levelname for record in caplog.records if "it is started again" in record.message] == ["WARNING"] * 2
    assert not processes_with(str(tmp_path / "etcd"))


def _read(cluster: LocalCluster) -> dict[str, str] | None:
    try:
        return cluster.get(CONFIG_MAPS, "default", "kept").data
    except Unavailable:
        return None


def test_one_that_cannot_be_started_again_ends_in_order(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    etcd = LocalEtcd(tmp_path / "etcd")
    with etcd:
        assert etcd.pid is not None
        os.kill(etcd.pid, signal.SIGKILL)
        shutil.rmtree(tmp_path / "etcd" / "etcd.data")
        (tmp_path / "etcd" / "etcd.data").write_text("junk")
        eventually(lambda: "could not be started, again in" in caplog.text, 20, "it is told")
    assert not processes_with(str(tmp_path / "etcd"))
