"""What ``image`` means where there are no images: an environment of this machine.

By default every image is the environment of the node itself: its virtual environment's programs first, then ``PATH``.
A mapping file (JSON or YAML) names others, by image, by image without tag and digest, or ``*`` for all::

    registry.example/train:1.2:
      virtualenv: /opt/train        # its bin folder comes first on PATH
      path: [/opt/tools/bin]        # before that
      env: {OMP_NUM_THREADS: "1"}
      entrypoint: [python, -m, train]
      workingDir: /opt/train/src
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from edl_controller.api.meta import Record

HANDED_ON = ("HOME", "LANG", "LC_ALL", "TZ", "USER")
"""Variables of the node that its containers see; nothing else of its environment."""

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class ImageMissing(ValueError):
    """The environment that an image is mapped to is not there; the container waits (``ErrImagePull``)."""


class ImageMapping(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which environment of this machine an image stands for; see the module."""

    virtualenv: str = ""
    path: tuple[str, ...] = ()
    env: dict[str, str] = {}  # noqa: RUF012 - msgspec gives each its own
    entrypoint: tuple[str, ...] = ()
    working_dir: str = ""


class Images:
    """All mappings of a node."""

    def __init__(self, mappings: Mapping[str, ImageMapping] | None = None) -> None:
        self._mappings = dict(mappings or {})

    @classmethod
    def read(cls, path: Path) -> Images:
        """Read a mapping file.

        Raises:
            OSError: it cannot be read.
            ValueError: it is no mapping of images to environments; the message names the place.
        """
        import yaml

        try:
            return cls(msgspec.convert(yaml.safe_load(path.read_bytes()) or {}, type=dict[str, ImageMapping]))
        except (msgspec.ValidationError, yaml.YAMLError) as error:
            raise ValueError(f"{path}: {error}") from error

    def find(self, image: str) -> ImageMapping:
        """Return what an image stands for; without a mapping the node's own environment.

        Raises:
            ImageMissing: the folder it is mapped to does not exist.
        """
        found = next((self._mappings[name] for name in (image, _plain(image), "*") if name in self._mappings), None)
        if found is None:
            return ImageMapping(virtualenv=sys.prefix if sys.prefix != sys.base_prefix else "")
        for folder in (found.virtualenv, found.working_dir, *found.path):
            if folder and not Path(folder).is_dir():
                raise ImageMissing(f"image {image!r} is mapped to {folder}, which is no folder of this machine")
        return found

    def describe(self, image: str) -> str:
        """Return one sentence for people: what an image stands for here."""
        mapping = self.find(image)
        where = mapping.virtualenv or "the programs on this machine's PATH"
        return f"image {image!r} is not pulled: its programs are those of this machine ({where})"


def environment(mapping: ImageMapping, node: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables that an image brings: PATH, a few of the node's, and those of its mapping."""
    result = {name: node[name] for name in HANDED_ON if name in node}
    folders = [*mapping.path]
    if mapping.virtualenv:
        folders.append(str(Path(mapping.virtualenv) / "bin"))
        result["VIRTUAL_ENV"] = mapping.virtualenv
    result["PATH"] = os.pathsep.join([*folders, node.get("PATH") or DEFAULT_PATH])
    return result | mapping.env


def program(word: str, environment: Mapping[str, str]) -> str:
    """Return the path of a program, looked up in the container's own PATH.

    A word with a slash is a path as the container sees it (perhaps in one of its volumes), and returned as it is.

    Raises:
        FileNotFoundError: there is no such program.
    """
    if "/" in word:
        return word
    path = environment.get("PATH") or os.defpath
    found = shutil.which(word, path=path)
    if found is None:
        raise FileNotFoundError(f"{word!r} is no program of this machine's environment (PATH={path})")
    return found


def _plain(image: str) -> str:
    name = image.partition("@")[0]
    head, slash, tail = name.rpartition("/")
    return head + slash + tail.partition(":")[0]
