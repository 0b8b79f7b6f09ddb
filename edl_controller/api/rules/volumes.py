"""PURE: volumes, and where they are mounted."""

from __future__ import annotations

import posixpath

from edl_controller.api import quantity
from edl_controller.api.names import is_label
from edl_controller.api.pods import Volume, VolumeMount
from edl_controller.api.rules.found import Found, shown
from edl_controller.api.rules.host_access import check_host_path
from edl_controller.api.settings import Settings
from edl_controller.errors import InvalidQuantity

LIMIT = 100
"""Volumes, and mounts."""
PATH_LIMIT = 4096
"""Characters, as in Linux."""
RESERVED_VOLUMES = "edl-"
"""Volumes that begin so are the controller's."""
RESERVED_FOLDER = "/run/edl"
"""What the controller and the agent keep in the pods."""

_SOURCES = tuple(name for name in Volume.__struct_fields__ if name != "name")


def check_volumes(found: Found, path: str, volumes: tuple[Volume, ...], settings: Settings) -> None:
    """Check the volumes of a job."""
    if len(volumes) > LIMIT:
        found.too_long(path, f"there are {len(volumes)}, at most {LIMIT} are allowed")
    found.unique(path, "name", (volume.name for volume in volumes))
    for index, volume in enumerate(volumes):
        here = f"{path}[{index}]"
        if not is_label(volume.name):
            found.invalid(
                f"{here}.name", f"{shown(volume.name)} is no name of a volume: lower case letters, digits, '-'"
            )
        elif volume.name.startswith(RESERVED_VOLUMES):
            found.forbidden(f"{here}.name", f"names that begin with {RESERVED_VOLUMES} are the controller's")
        if sum(getattr(volume, source) is not None for source in _SOURCES) != 1:
            found.invalid(here, "give exactly one source, such as emptyDir, persistentVolumeClaim, configMap or secret")
        check_host_path(found, here, volume, settings)
        if volume.empty_dir is not None and volume.empty_dir.size_limit is not None:
            try:
                quantity.resource(volume.empty_dir.size_limit)
            except InvalidQuantity as error:
                found.invalid(f"{here}.emptyDir.sizeLimit", str(error))


def check_mounts(found: Found, path: str, mounts: tuple[VolumeMount, ...], volumes: tuple[Volume, ...]) -> None:
    """Check that each mount shows a volume of the job in a folder of its own."""
    if len(mounts) > LIMIT:
        found.too_long(path, f"there are {len(mounts)}, at most {LIMIT} are allowed")
    names = {volume.name for volume in volumes}
    found.unique(path, "mountPath", (posixpath.normpath(mount.mount_path) for mount in mounts))
    for index, mount in enumerate(mounts):
        here = f"{path}[{index}]"
        if mount.name not in names:
            found.invalid(f"{here}.name", f"there is no volume {shown(mount.name)} in spec.volumes")
        folder = mount.mount_path
        found.plain(f"{here}.mountPath", folder, PATH_LIMIT)
        if not folder.startswith("/") or ":" in folder or ".." in folder.split("/"):
            found.invalid(f"{here}.mountPath", f"{shown(folder)} is no absolute path without ':' and '..'")
            continue
        folder = posixpath.normpath(folder).replace("//", "/")
        if folder == "/" or folder == RESERVED_FOLDER or folder.startswith(f"{RESERVED_FOLDER}/"):
            found.forbidden(f"{here}.mountPath", f"nothing can be mounted at {shown(folder)}")
        if mount.sub_path.startswith("/") or ".." in mount.sub_path.split("/"):
            found.invalid(f"{here}.subPath", f"{shown(mount.sub_path)} is no relative path without '..'")
