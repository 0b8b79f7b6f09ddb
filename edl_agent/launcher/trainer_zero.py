"""Trainer 0 first: it pushes the initial parameters, so others wait until it runs with the same pservers."""

import json
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from edl_agent import errors
from edl_agent.launcher.policy import Held, Pservers
from edl_agent.live_range import LiveRange

if TYPE_CHECKING:
    from edl_agent.client import EtcdClient

_log = logging.getLogger(__name__)

KEY = "/edl/trainer_zero"
"""JSON ``{"v": 1, "epochs": [...]}``: the epochs of the pservers that trainer 0 runs with; empty = it does not run.

Under its lease, written only by the holder of ``/trainer/0``.
"""


class TrainerZero:
    """Both sides of the key.

    Args:
        client: with or without a slot.
        changed: called when the key changes; must not block.
    """

    def __init__(self, client: "EtcdClient", changed: Callable[[], object]) -> None:
        self._client = client
        self._key = client._keys.full(KEY)
        self._told: tuple[int, list[int]] | None = None
        self._range = LiveRange(client, self._key, b"", "trainer-zero", lambda: _call(changed))
        client.on_close(self._range.close)
        self._range.start()

    def runs_with(self, pservers: Pservers) -> bool:
        """Whether trainer 0 runs with exactly these incarnations of the pservers."""
        with self._range.lock:
            known = self._range.pairs.get(self._key)
        return bool(pservers.held) and known is not None and _decode(known.value) == _epochs(pservers)

    def running(self, slot: Held, pservers: Pservers) -> None:
        """Say that this process, trainer 0, runs. Cheap when said already; tried again by the next call if it fails."""
        said = (slot.epoch, _epochs(pservers))
        if said != self._told and self._put(slot, said[1]):
            self._told = said

    def stopped(self, slot: Held) -> None:
        """Take it back, where it was said."""
        if self._told is not None:
            self._told = None
            self._put(slot, [])

    def _put(self, slot: Held, epochs: list[int]) -> bool:
        value = json.dumps({"v": 1, "epochs": epochs}).encode()
        try:
            return self._client.compare_and_set(KEY, value, epoch=slot.epoch, with_lease=True)
        except errors.LeaseLost:
            return False  # then the key is gone too
        except errors.EdlAgentError as error:
            _log.debug("Trainer 0 could not say that it runs: %s", error)
            return False


def _call(changed: Callable[[], object]) -> None:
    changed()


def _epochs(pservers: Pservers) -> list[int]:
    return [peer.epoch for peer in pservers.held]


def _decode(value: bytes) -> list[int] | None:
    try:
        found = json.loads(value)["epochs"]
    except (ValueError, KeyError, TypeError):
        return None
    return found if isinstance(found, list) else None
