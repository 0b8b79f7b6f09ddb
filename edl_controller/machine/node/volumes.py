"""Volumes of a pod: folders of this machine.

Where they appear: a node that may mount (root) gives each container a mount namespace of its own, in which every volume
is at its mount path; missing mount points are made and removed again. Another node makes a symbolic link at the mount
path where nothing is there and it may write; what cannot be given there is reported by the event
``VolumeNotAtMountPath``, and the folder takes the place of that path in the command and in the variables of the
container. ``EDL_VOLUME_<NAME>`` (upper case, other characters as ``_``) names the folder in each case.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from edl_controller.api.meta import Json
from edl_controller.api.pods import Container, FieldSelector, HostPath, Pod, Volume
from edl_controller.machine.node.environment import (
    ConfigurationMissing,
    PodFacts,
    Source,
    pod_field,
    resource_field,
)

_DEFAULT_MODE = 0o644
_MAP_FIELD = re.compile(r"metadata\.(labels|annotations)")
_TYPES = {
    "Directory": stat.S_ISDIR,
    "File": stat.S_ISREG,
    "Socket": stat.S_ISSOCK,
    "CharDevice": stat.S_ISCHR,
    "BlockDevice": stat.S_ISBLK,
}


class VolumeUnavailable(ValueError):
    """A volume cannot be given; the pod waits."""


def may_mount() -> bool:
    """Tell whether this process may mount: it has CAP_SYS_ADMIN."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return False
    found = re.search(r"^CapEff:\s*([0-9a-f]+)$", status, re.MULTILINE)
    return found is not None and bool(int(found[1], 16) >> 21 & 1)


def sources(pod: Pod) -> Iterator[Source]:
    """Yield the Secrets and ConfigMaps that the volumes of a pod are made from."""
    for volume in pod.spec.volumes:
        for part in _parts(volume):
            if part.get("secret") is not None:
                yield "Secret", part["secret"].get("secretName") or part["secret"].get("name") or ""
            if part.get("configMap") is not None:
                yield "ConfigMap", part["configMap"].get("name") or ""


def prepare(volume: Volume, facts: PodFacts, folder: Path) -> str:
    """Make a volume, below ``folder`` unless it is a path of the machine, and return its path.

    Raises:
        VolumeUnavailable: it cannot be given on this machine, or something it needs is missing.
    """
    where = folder / volume.name
    try:
        if volume.host_path is not None:
            return _host_path(volume.host_path)
        if volume.empty_dir is not None:
            where.mkdir(parents=True, exist_ok=True, mode=0o777)
            where.chmod(0o777)
            return str(where)
        parts = list(_parts(volume))
        if not parts:
            raise VolumeUnavailable(f"volume {volume.name!r}: its type is not to be had on this machine")
        files: dict[str, tuple[bytes, int]] = {}
        for part in parts:
            files |= _files(part, facts)
        _write(where, files)
    except (OSError, ConfigurationMissing) as error:
        raise VolumeUnavailable(f"volume {volume.name!r}: {error}") from error
    return str(where)


def variables(paths: Mapping[str, str]) -> dict[str, str]:
    """Return ``EDL_VOLUME_<NAME>`` for each volume."""
    return {"EDL_VOLUME_" + re.sub(r"[^A-Z0-9]", "_", name.upper()): path for name, path in paths.items()}


def mounts(container: Container, paths: Mapping[str, str]) -> list[tuple[str, str, bool]]:
    """Return what a container sees where: (source, target, read only), outer paths first.

    Raises:
        VolumeUnavailable: a mount names no volume of the pod, or its path leaves it.
    """
    result = []
    for mount in container.volume_mounts:
        if mount.name not in paths:
            raise VolumeUnavailable(
                f"container {container.name!r} mounts {mount.name!r}, which is no volume of the pod"
            )
        if ".." in Path(mount.sub_path).parts or mount.sub_path.startswith("/"):
            raise VolumeUnavailable(f"subPath {mount.sub_path!r} leaves volume {mount.name!r}")
        source = Path(paths[mount.name], mount.sub_path)
        if mount.sub_path and not source.exists():
            source.mkdir(parents=True, exist_ok=True)
        target = os.path.normpath(os.path.join("/", mount.mount_path))
        result.append((str(source), target, mount.read_only))
    return outer_first(result)


def outer_first(wanted: Sequence[tuple[str, str, bool]]) -> list[tuple[str, str, bool]]:
    """Return mounts in an order in which none hides another."""
    return sorted(wanted, key=lambda one: len(Path(one[1]).parts))


class Refused(NamedTuple):
    """A mount that is not at its path."""

    source: str
    target: str
    why: str

    @property
    def note(self) -> str:
        """For the event."""
        return (
            f"{self.source} cannot appear at {self.target} without root's rights: {self.why}."
            " It takes the place of that path in the command and in the variables"
        )


def relocated(text: str, refused: Sequence[Refused]) -> str:
    """Return a word of a command, or a variable's value, in which mount paths are replaced by where the volumes are.

    A path is replaced as a whole or as the beginning of a longer one, and where nothing that could belong to a path is
    before it.
    """
    by_target = {one.target: one.source for one in refused}
    if not by_target:
        return text
    paths = "|".join(map(re.escape, sorted(by_target, key=len, reverse=True)))
    return re.sub(rf"(?<![\w./-])({paths})(?![\w.-])", lambda found: by_target[found[1]], text)


class Links:
    """Symbolic links at mount paths, for nodes that may not mount; links of pods that end are removed. Thread-safe."""

    def __init__(self) -> None:
        self._users: dict[str, tuple[str, set[str]]] = {}
        self._lock = threading.Lock()

    def make(self, user: str, wanted: Sequence[tuple[str, str, bool]]) -> list[Refused]:
        """Link what can be linked; return the mounts that cannot be given."""
        with self._lock:
            tried = [Refused(source, target, self._make_one(user, source, target)) for source, target, _ in wanted]
        return [one for one in tried if one.why]

    def drop(self, user: str) -> None:
        """Remove the links that only ``user`` needs."""
        with self._lock:
            for target, (source, users) in list(self._users.items()):
                users.discard(user)
                if not users:
                    del self._users[target]
                    if os.path.islink(target) and os.readlink(target) == source:
                        os.unlink(target)

    def _make_one(self, user: str, source: str, target: str) -> str:
        if os.path.realpath(target) == os.path.realpath(source):
            if os.path.islink(target) and os.readlink(target) == source:  # of another pod, or of a node that was killed
                self._users.setdefault(target, (source, set()))[1].add(user)
            return ""
        try:
            os.makedirs(os.path.dirname(target), exist_ok=True)
            os.symlink(source, target)
        except OSError as error:
            return error.strerror or str(error)
        self._users[target] = (source, {user})
        return ""


def remove(folder: Path) -> None:
    """Remove the folder of a pod, whatever its programs made of it."""
    shutil.rmtree(folder, ignore_errors=True)


def _host_path(wanted: HostPath) -> str:
    path, kind = Path(wanted.path), wanted.type
    if kind == "DirectoryOrCreate":
        path.mkdir(parents=True, exist_ok=True, mode=0o755)
        kind = "Directory"
    elif kind == "FileOrCreate":
        path.touch(mode=0o644, exist_ok=True)
        kind = "File"
    mode = path.stat().st_mode  # raises where nothing is there
    if kind and kind not in _TYPES:
        raise VolumeUnavailable(f"hostPath type {kind!r} is not known")
    if kind and not _TYPES[kind](mode):
        raise VolumeUnavailable(f"hostPath {wanted.path} is no {kind}")
    return str(path)


def _parts(volume: Volume) -> Iterator[Json]:
    """Yield the sources of a volume that is written from objects, each as one of a projected volume."""
    if volume.secret is not None:
        yield {"secret": volume.secret}
    if volume.config_map is not None:
        yield {"configMap": volume.config_map}
    if volume.downward_api is not None:
        yield {"downwardAPI": volume.downward_api}
    if volume.projected is not None:
        for part in volume.projected.get("sources") or ():
            yield {"defaultMode": volume.projected.get("defaultMode"), **part}


def _files(part: Json, facts: PodFacts) -> dict[str, tuple[bytes, int]]:
    for key, kind in (("secret", "Secret"), ("configMap", "ConfigMap")):
        given = part.get(key)
        if given is not None:
            name = given.get("secretName") or given.get("name") or ""
            mode = given.get("defaultMode") or part.get("defaultMode") or _DEFAULT_MODE
            return _data_files(kind, name, given, int(mode), facts)
    if part.get("downwardAPI") is not None:
        given = part["downwardAPI"]
        mode = int(given.get("defaultMode") or part.get("defaultMode") or _DEFAULT_MODE)
        return {
            item["path"]: (_downward(item, facts).encode("utf-8", "surrogateescape"), int(item.get("mode") or mode))
            for item in given.get("items") or ()
        }
    raise ConfigurationMissing(f"{next(iter(set(part) - {'defaultMode'}), 'an empty source')} is not to be had here")


def _data_files(kind: Any, name: str, given: Json, mode: int, facts: PodFacts) -> dict[str, tuple[bytes, int]]:
    data = facts.data.get((kind, name))
    optional = bool(given.get("optional"))
    if data is None:
        if optional:
            return {}
        raise ConfigurationMissing(f"{kind} {name!r} is not there")
    items = given.get("items") or [{"key": key, "path": key} for key in data]
    missing = [item["key"] for item in items if item["key"] not in data]
    if missing and not optional:
        raise ConfigurationMissing(f"key {missing[0]!r} of {kind} {name!r} is not there")
    return {
        item["path"]: (data[item["key"]].encode("utf-8", "surrogateescape"), int(item.get("mode") or mode))
        for item in items
        if item["key"] in data
    }


def _downward(item: Json, facts: PodFacts) -> str:
    if item.get("resourceFieldRef"):
        return resource_field(item["resourceFieldRef"], facts.pod.spec.containers[0], facts)
    selector = FieldSelector(field_path=item.get("fieldRef", {}).get("fieldPath", ""))
    found = _MAP_FIELD.fullmatch(selector.field_path)
    if found:
        values = facts.pod.metadata.labels if found[1] == "labels" else facts.pod.metadata.annotations
        return "\n".join(f'{key}="{value}"' for key, value in sorted(values.items()))
    return pod_field(selector.field_path, facts)


def _write(folder: Path, files: Mapping[str, tuple[bytes, int]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, (content, mode) in files.items():
        path = folder / name
        if ".." in Path(name).parts or path == folder or Path(name).is_absolute():
            raise ConfigurationMissing(f"path {name!r} leaves the volume")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode & 0o777), "wb") as file:
            file.write(content)
        path.chmod(mode & 0o777)
