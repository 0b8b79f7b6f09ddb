"""PURE: what a decision asks the shell to do. Each action is idempotent: a crash before or after it converges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from edl_controller.api.kinds import ApiObject, Kind


@dataclass(frozen=True)
class Create:
    """Create a child; if its name is taken, the shell reads whose it is."""

    obj: ApiObject


@dataclass(frozen=True)
class Delete:
    """Delete one very object (by uid); gone already is fine."""

    kind: Kind[Any]
    namespace: str
    name: str
    uid: str


@dataclass(frozen=True)
class Patch:
    """Merge-patch one very object (by uid); ``resource_version`` only where the decision hangs on the exact state."""

    kind: Kind[Any]
    namespace: str
    name: str
    uid: str
    patch: dict[str, Any]
    subresource: str = ""
    resource_version: str = ""


@dataclass(frozen=True)
class Note:
    """An Event for people. ``warning`` where somebody should look."""

    reason: str
    action: str
    note: str
    warning: bool = False


Action = Create | Delete | Patch
