"""PURE: Secret and ConfigMap: where a pod's variables and files may come from."""

from __future__ import annotations

from edl_controller.api.meta import ObjectMeta, Record


class Secret(Record, frozen=True, kw_only=True):
    """Values that must not be shown. ``data`` is base64; its repr hides it."""

    metadata: ObjectMeta = ObjectMeta()
    type: str = ""
    data: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"Secret({self.metadata.namespace}/{self.metadata.name}, keys={sorted(self.data)})"


class ConfigMap(Record, frozen=True, kw_only=True):
    """Plain values."""

    metadata: ObjectMeta = ObjectMeta()
    data: dict[str, str] = {}
