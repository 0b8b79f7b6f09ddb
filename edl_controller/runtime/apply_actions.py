"""Does what a decision asks for, each step safe to repeat, and puts every answer into the caches at once.

What the decision assumed may have changed since: then `StaleDecision` ends the pass, and the next one decides on what
is. Nothing is deleted or patched but the very object that was meant (by uid), and a foreign object never.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

from edl_controller.api import timestamps
from edl_controller.api.kinds import ApiObject, Kind, kind_of
from edl_controller.cluster.port import Cluster
from edl_controller.core.actions import Action, Create, Delete, Patch
from edl_controller.errors import AlreadyExists, Conflict, NotFound
from edl_controller.runtime.informers import Informers
from edl_controller.runtime.logs import about

log = logging.getLogger(__name__)


class StaleDecision(Conflict):
    """The world is not as the decision assumed; the caches know better now."""


class ActionApplier:
    """Applies actions.

    Args:
        cluster: to act on.
        informers: whose caches take the answers; kinds without an informer are only written.
        now: Unix seconds.
    """

    def __init__(self, cluster: Cluster, informers: Informers, now: Callable[[], float]) -> None:
        self._cluster, self._informers, self._now = cluster, informers, now

    def apply(self, actions: Iterable[Action], owner: ApiObject) -> int:
        """Take the actions in their order for their ``owner``; returns how many.

        Raises:
            StaleDecision: decide anew.
            ClusterError: the cluster does not do it; what came before it is done.
        """
        count = 0
        for action in actions:
            match action:
                case Create():
                    self._create(action.obj, owner)
                case Delete():
                    self._delete(action)
                case Patch():
                    self._patch(action)
            count += 1
        return count

    def _create(self, obj: ApiObject, owner: ApiObject) -> None:
        kind, meta = kind_of(obj), obj.metadata
        try:
            self._observe(kind, self._cluster.create(obj))
        except AlreadyExists as error:
            # Ours (an answer that was lost, a cache that lags) or a stranger's: the next pass sees which.
            self._observe_live(kind, meta.namespace, meta.name)
            raise StaleDecision(f"{kind.name} {meta.name} of {owner.metadata.name} is there already") from error
        self._tell("Created", kind, meta.namespace, meta.name)

    def _delete(self, action: Delete) -> None:
        live = self._observe_live(action.kind, action.namespace, action.name)
        if live is None or live.metadata.uid != action.uid:
            return
        try:
            self._cluster.delete(action.kind, action.namespace, action.name, uid=action.uid)
        except NotFound:
            return
        if self._informers.has(action.kind):
            self._informers.of(action.kind).cache.observe_end(live, timestamps.render(self._now()))
        self._tell("Deleted", action.kind, action.namespace, action.name)

    def _patch(self, action: Patch) -> None:
        try:
            after = self._cluster.patch(
                action.kind,
                action.namespace,
                action.name,
                action.patch,
                subresource=action.subresource,  # type: ignore[arg-type]
                resource_version=action.resource_version,
                uid=action.uid,
            )
        except (NotFound, Conflict) as error:
            self._observe_live(action.kind, action.namespace, action.name)
            raise StaleDecision(f"{action.kind.name} {action.name} is not as it was: {error}") from error
        self._observe(action.kind, after)
        self._tell("Patched", action.kind, action.namespace, action.name)

    @staticmethod
    def _tell(done: str, kind: Kind[Any], namespace: str, name: str) -> None:
        log.info("%s %s %s/%s", done, kind.name, namespace, name, extra=about(kind.name, namespace, name))

    def _observe(self, kind: Kind[Any], obj: Any) -> None:
        if self._informers.has(kind):
            self._informers.of(kind).cache.observe(obj)

    def _observe_live(self, kind: Kind[Any], namespace: str, name: str) -> ApiObject | None:
        try:
            live: ApiObject = self._cluster.get(kind, namespace, name)
        except NotFound:
            return None
        self._observe(kind, live)
        return live
