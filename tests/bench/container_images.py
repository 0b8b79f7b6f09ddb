"""Images for containerd without a registry: the pause image of the tests, and archives as they are imported."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.bench.go_programs import GoPrograms

PAUSE_IMAGE = "localhost/edl-tests-pause:1"

PAUSE = GoPrograms(
    name="pause",
    version="1",
    module=Path(__file__).resolve().parent.parent / "containers" / "pause",
    packages={"pause": "."},
)
"""One second, 1.5 MB."""


def write_archive(archive: Path, tag: str, files: Mapping[str, bytes], entry_point: Sequence[str]) -> None:
    """Write a docker-archive with one layer: ``files`` (path -> content), all of them executable."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        for path, content in files.items():
            _add(tar, path, content, 0o755)
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": list(entry_point), "User": "65532:65532"},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer.getvalue()).hexdigest()}"]},
    }
    with tarfile.open(archive, mode="w") as tar:
        _add(tar, "layer.tar", layer.getvalue(), 0o644)
        _add(tar, "config.json", json.dumps(config).encode(), 0o644)
        manifest = [{"Config": "config.json", "RepoTags": [tag], "Layers": ["layer.tar"]}]
        _add(tar, "manifest.json", json.dumps(manifest).encode(), 0o644)


def write_pause(archive: Path) -> None:
    """Build the pause program where it is not in the cache, and write its image."""
    program = (PAUSE.cached() or PAUSE.build()) / "pause"
    write_archive(archive, PAUSE_IMAGE, {"pause": program.read_bytes()}, ["/pause"])


def _add(tar: tarfile.TarFile, path: str, content: bytes, mode: int) -> None:
    entry = tarfile.TarInfo(path)
    entry.size, entry.mode = len(content), mode
    tar.addfile(entry, io.BytesIO(content))
