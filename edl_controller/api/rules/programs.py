"""PURE: images and command lines. Neither is ever given to a shell, pulled or looked up by the controller."""

from __future__ import annotations

import re
import shlex

from edl_controller.api.rules.found import Found, shown
from edl_controller.api.settings import Settings
from edl_controller.api.v1 import RoleSpec

IMAGE_LIMIT = 512
"""Characters of an image's name."""
COMMAND_LIMIT = 32 * 1024
"""Characters of a command, with its arguments; ``execve`` takes 128 KiB for one."""
PULL_POLICIES = ("Always", "IfNotPresent", "Never")

_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]*")


def check_image(found: Found, path: str, image: str, settings: Settings) -> None:
    """Check the name of an image, and whether it is one of those allowed."""
    if not image:
        found.required(path, "say which image to run")
    elif len(image) > IMAGE_LIMIT:
        found.too_long(path, f"it has {len(image)} characters, at most {IMAGE_LIMIT} are allowed")
    elif not _IMAGE.fullmatch(image):
        found.invalid(path, f"{shown(image)} is no name of an image")
    elif settings.image_prefixes and not any(_below(image, prefix) for prefix in settings.image_prefixes):
        found.forbidden(path, f"{shown(image)} is not below {', '.join(settings.image_prefixes)}")


def check_command(found: Found, path: str, role: RoleSpec, *, needed: bool) -> None:
    """Check what one role runs."""
    if role.entrypoint and role.command:
        found.invalid(f"{path}.command", "there is an entrypoint already: give one of them")
    elif needed and not (role.entrypoint or role.command):
        found.required(f"{path}.entrypoint", "say what to run")
    found.plain(f"{path}.entrypoint", role.entrypoint, COMMAND_LIMIT)
    if role.entrypoint and len(role.entrypoint) <= COMMAND_LIMIT:
        try:
            if not words(role.entrypoint):
                found.invalid(f"{path}.entrypoint", "there is no word in it")
        except ValueError as error:
            found.invalid(f"{path}.entrypoint", f"it cannot be split into words: {str(error).lower()}")
    for index, word in enumerate(role.command):
        found.plain(f"{path}.command[{index}]", word, COMMAND_LIMIT)
    if role.command and not role.command[0]:
        found.invalid(f"{path}.command[0]", "the name of the program is empty")
    if sum(map(len, role.command)) > COMMAND_LIMIT:
        found.too_long(f"{path}.command", f"it has more than {COMMAND_LIMIT} characters")
    found.plain(f"{path}.workspace", role.workspace, 4096)


def words(entrypoint: str) -> list[str]:
    """Split a command line into words as a POSIX shell would; nothing in it is expanded or run.

    Raises:
        ValueError: a quotation or an escape is not closed.
    """
    return shlex.split(entrypoint)


def _below(image: str, prefix: str) -> bool:
    # ``registry.example.com`` must not allow ``registry.example.com.evil.org``.
    rest = image[len(prefix) :]
    return image.startswith(prefix) and (not rest or prefix[-1] in "/:@" or rest[0] in "/:@")
