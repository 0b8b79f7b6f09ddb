"""PURE: where there is room, while a plan is being made: counted per node, for each shape of pod.

Two books are kept of each node: what is free *now*, which only shrinks within a plan, and what is free *soon*, when all
that is leaving has left. Growth uses only the first; a waiting pod may count on the second.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping

from edl_controller.core.capacity import NodeRoom
from edl_controller.core.placement import CPU, NodeFacts, Rules, Shape, add, insufficient, why_not

_Class = tuple[object, ...]


class Search:
    """How far the search for room for one shape has come: from the most idle node down to those with too few cores."""

    __slots__ = ("index", "least", "needs", "shape")

    def __init__(self, shape: Shape, index: int, idle: list[int]) -> None:
        self.shape = shape
        self.needs = tuple((name, amount) for name, amount in shape.asked if amount > 0)
        self.index = index
        cores = dict(self.needs).get(CPU)
        self.least = 0 if cores is None else bisect_left(idle, cores)


class Rooms:
    """The room of all nodes.

    Args:
        nodes: the accounts.
        rules: of all pods that will be asked about (which labels tell nodes apart follows from them).
    """

    def __init__(self, nodes: Iterable[NodeRoom], rules: Iterable[Rules]) -> None:
        kinds = set(rules)
        self._keys = tuple(sorted(set().union(*(one.label_keys() for one in kinds))))
        self._by_name = any(one.names_nodes() for one in kinds)
        # The most idle first, as the scheduler would choose.
        order = sorted(nodes, key=lambda node: node.room.get(CPU, 0))
        self._idle = [node.room.get(CPU, 0) for node in order]
        self._nodes = order
        self._now: list[Mapping[str, int]] = [node.room for node in order]
        self._own: dict[int, dict[str, int]] = {}
        self._index = {node.facts.name: index for index, node in enumerate(order)}
        self._extra: dict[int, dict[str, int]] = {
            index: dict(node.leaving) for index, node in enumerate(order) if node.leaving
        }
        self._classes: list[_Class] = [self._class(node.facts) for node in order]
        self._allowed: dict[tuple[Rules, _Class], bool] = {}
        self._searches: dict[Shape, Search] = {}

    def search(self, shape: Shape) -> Search:
        """Return the search for room for a shape; equal shapes share one."""
        found = self._searches.get(shape)
        if found is None:
            found = self._searches[shape] = Search(shape, len(self._nodes) - 1, self._idle)
        return found

    def take(self, search: Search) -> str | None:
        """Book one pod into the room of now. Returns the node, or None where no node has room for it.

        What is free now only shrinks, so a node that was passed over once never needs to be looked at again.
        """
        index, needs = search.index, search.needs
        while index >= search.least:
            room = self._now[index]
            for name, amount in needs:
                if room.get(name, 0) < amount:
                    break
            else:
                if self.allows(search.shape.rules, index):
                    search.index = index
                    self._book(index, needs)
                    return self._nodes[index].facts.name
            index -= 1
        search.index = -1
        return None

    def take_soon(self, shape: Shape) -> str | None:
        """Book one pod where there is room once all that leaves has left. Returns the node, or None."""
        for index, extra in self._extra.items():
            if self.allows(shape.rules, index) and not self._short(shape, index, extra):
                self._book(index, self.search(shape).needs)
                return self._nodes[index].facts.name
        return None

    def fits_soon(self, shape: Shape, node: str, more: Mapping[str, int]) -> bool:
        """Tell whether a pod would fit on a node if ``more`` left it, too."""
        index = self._index.get(node)
        if index is None or not self.allows(shape.rules, index):
            return False
        return not self._short(shape, index, add(dict(more), self._extra.get(index, {})))

    def leaves(self, node: str, asked: Mapping[str, int]) -> bool:
        """Note that a pod will leave a node. Returns whether the node takes new pods (others are in no sum)."""
        index = self._index.get(node)
        if index is None:
            return False
        add(self._extra.setdefault(index, {}), asked)
        return self._nodes[index].open

    def allows(self, rules: Rules, index: int) -> bool:
        """Tell whether a pod may run on a node, whatever the room."""
        key = (rules, self._classes[index])
        found = self._allowed.get(key)
        if found is None:
            found = self._allowed[key] = not why_not(rules, self._nodes[index].facts)
        return found

    def may_run(self, rules: Rules, node: str) -> bool:
        """Tell whether a pod may run on a node of this name, whatever the room."""
        index = self._index.get(node)
        return index is not None and self.allows(rules, index)

    def _short(self, shape: Shape, index: int, extra: Mapping[str, int]) -> tuple[str, ...]:
        return insufficient(shape.amounts, add(dict(self._now[index]), extra))

    def _book(self, index: int, needs: tuple[tuple[str, int], ...]) -> None:
        room = self._own.get(index)
        if room is None:
            room = self._own[index] = dict(self._now[index])
            self._now[index] = room
        for name, amount in needs:
            room[name] = room.get(name, 0) - amount

    def _class(self, facts: NodeFacts) -> _Class:
        labels = tuple(facts.labels.get(key) for key in self._keys)
        return (labels, facts.taints, facts.unschedulable, facts.ready, facts.name if self._by_name else "")
