"""What etcd itself says of one job's slots, read and changed past the product through etcd's JSON gateway."""

from __future__ import annotations

import base64
import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.bench.waiting import eventually


@dataclass(frozen=True)
class StoredSlot:
    """One slot key as stored; ``lease`` 0 = none."""

    index: int
    address: str
    epoch: int
    lease: int


class SlotTable:
    """The slots below ``prefix`` on the etcd at ``url`` (``http://host:port``)."""

    def __init__(self, url: str, prefix: str) -> None:
        self._address = url.split("://")[-1]
        self._prefix = prefix

    # -- reading ---------------------------------------------------------------------------------------------------

    def read(self) -> dict[int, StoredSlot]:
        """All slots at one revision."""
        answer = self._range(f"{self._prefix}/ps/", f"{self._prefix}/ps0")
        slots = {}
        for kv in answer.get("kvs", ()):
            index = int(_text(kv["key"]).rsplit("/", 1)[1])
            slots[index] = StoredSlot(
                index, _text(kv.get("value", "")), int(kv["mod_revision"]), int(kv.get("lease", 0))
            )
        return slots

    def value(self, key: str) -> str | None:
        """The value of one key, None where it is absent."""
        kvs = self._range(self._prefix + key).get("kvs", ())
        return _text(kvs[0].get("value", "")) if kvs else None

    def version(self, key: str) -> int:
        """How often the key was put since it was created; 0 where it is absent."""
        kvs = self._range(self._prefix + key).get("kvs", ())
        return int(kvs[0]["version"]) if kvs else 0

    def lease_lives(self, lease: int) -> bool:
        """Whether etcd knows the lease."""
        # -1 = unknown; the gateway leaves a zero out.
        return int(self._ask("/v3/lease/timetolive", {"ID": str(lease)}).get("TTL", 0)) >= 0

    # -- changing --------------------------------------------------------------------------------------------------

    def put(self, key: str, value: str) -> int:
        """Put a key without a lease; returns the revision."""
        return int(
            self._ask("/v3/kv/put", {"key": _code(self._prefix + key), "value": _code(value)})["header"]["revision"]
        )

    def set_desired(self, count: int) -> int:
        """Put ``/ps_desired``; returns the revision."""
        return self.put("/ps_desired", str(count))

    def delete(self, key: str) -> None:
        """Delete a key."""
        self._ask("/v3/kv/deleterange", {"key": _code(self._prefix + key)})

    def revoke(self, lease: int) -> None:
        """Revoke a lease."""
        self._ask("/v3/lease/revoke", {"ID": str(lease)})

    # -- the invariants --------------------------------------------------------------------------------------------

    def broken_rules(self, desired: int) -> list[str]:
        """What breaks the invariants I2, I3 and I4 at this moment."""
        slots = self.read()
        broken = [f"I2: slot {i} with {desired} desired" for i in slots if not 0 <= i < desired]
        broken += [f"I3: slot {i} has no lease" for i, slot in slots.items() if not slot.lease]
        addresses = [slot.address for slot in slots.values()]
        broken += [f"I4: {a} holds several slots: {slots}" for a in set(addresses) if addresses.count(a) > 1]
        return broken

    def settle(self, held: Mapping[str, int | None], desired: int, timeout: float) -> None:
        """Invariants I2 to I5: exactly ``min(live agents, desired)`` slots are filled within ``timeout`` seconds, and
        each agent's index is the key with its address.

        ``held``: address of each live agent -> index it reports (read anew at each look: hand in a live mapping).
        """

        def settled() -> bool:
            slots = self.read()
            assert len(slots) == min(len(held), desired), slots
            assert {address: index for address, index in held.items() if index is not None} == {
                slot.address: slot.index for slot in slots.values()
            }
            assert not self.broken_rules(desired)
            return True

        eventually(settled, timeout, f"{min(len(held), desired)} slots filled by those who say so")

    # -- the gateway -----------------------------------------------------------------------------------------------

    def _range(self, key: str, end: str | None = None) -> dict[str, Any]:
        return self._ask("/v3/kv/range", {"key": _code(key)} | ({"range_end": _code(end)} if end else {}))

    def _ask(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        connection = http.client.HTTPConnection(self._address, timeout=10)
        try:
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            text = answer.read()
            assert answer.status == 200, f"etcd answered {answer.status} to {path}: {text[:200]!r}"
            found: dict[str, Any] = json.loads(text)
            return found
        finally:
            connection.close()


def _code(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _text(code: str) -> str:
    return base64.b64decode(code).decode()
