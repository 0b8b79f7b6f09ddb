"""Lists and watch lines into objects, by types: nothing is built that is not read.

One object that cannot be read is one bad object (`Kind.decode_marked`), not the end of a list. `WholeObjects` is for
every kind; `LeanPods` reads of pods what a controller asks for, shares what is the same in many, and takes a
fraction of the time and memory.
"""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from edl_controller.api import nesting
from edl_controller.api.kinds import ApiObject, Kind

T = TypeVar("T", bound=ApiObject)
V = TypeVar("V")

BIG = 100_000
"""Bytes from which the cyclic garbage collector is kept out: it takes two thirds of the time, and finds nothing."""


class ListMeta(msgspec.Struct, frozen=True, rename="camel"):
    """Of a list or a page of one, and of the objects of bookmarks."""

    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


@dataclass(frozen=True)
class Page(Generic[T]):
    """A part of a list; ``more``: the token of the next one, empty at the end."""

    items: list[T]
    resource_version: str
    more: str


@dataclass(frozen=True, slots=True)
class Line(Generic[T]):
    """One line of a watch. ``obj`` is None for ERROR and BOOKMARK; ``raw``: the object of an ERROR."""

    type: str
    obj: T | None
    resource_version: str
    raw: bytes = b""


class Decoder(Protocol[T]):
    """Reads one kind."""

    def page(self, data: bytes) -> Page[T]:
        """Read a list.

        Raises:
            msgspec.MsgspecError: it is none.
        """
        ...

    def line(self, data: bytes) -> Line[T]:
        """Read a line of a watch.

        Raises:
            msgspec.MsgspecError: it is none.
        """
        ...


class _RawPage(msgspec.Struct):
    metadata: ListMeta = ListMeta()
    items: list[msgspec.Raw] | None = None


class _RawLine(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Bookmark(msgspec.Struct):
    metadata: ListMeta = ListMeta()


class WholeObjects(Generic[T]):
    """Every field that the type has."""

    def __init__(self, kind: Kind[T]) -> None:
        self._kind = kind
        self._page, self._line = _typed_decoders(kind.name, kind.type)
        # Where other names of fields are known, each object is looked at for them first.
        self._typed = kind.translate is None

    def page(self, data: bytes) -> Page[T]:
        """See `Decoder.page`."""
        with without_cycles_collected(len(data)):
            if self._typed:
                with contextlib.suppress(msgspec.ValidationError, RecursionError):
                    found = self._page.decode(data)
                    return Page(found.items or [], found.metadata.resource_version, found.metadata.continue_)
            return raw_page(self._kind, data)

    def line(self, data: bytes) -> Line[T]:
        """See `Decoder.line`."""
        if self._typed:
            with contextlib.suppress(msgspec.ValidationError, RecursionError):
                found = self._line.decode(data)
                if found.type not in ("ERROR", "BOOKMARK"):
                    return Line(found.type, found.object, found.object.metadata.resource_version)
        return raw_line(self._kind, data)


def _typed_decoders(name: str, item: Any) -> tuple[msgspec.json.Decoder[Any], msgspec.json.Decoder[Any]]:
    page = msgspec.defstruct(
        f"{name}Page", [("metadata", ListMeta, ListMeta()), ("items", list[item] | None, None)], gc=False
    )
    line = msgspec.defstruct(f"{name}Line", [("type", str), ("object", item)], gc=False)
    return msgspec.json.Decoder(page), msgspec.json.Decoder(line)


def raw_page(kind: Kind[T], data: bytes) -> Page[T]:
    """Read a list object by object: for lists with one that has a null or a wrong type in it, or is nested too deep."""
    found = _shallow_if_needed(data, _RawPage)
    items = [kind.decode_marked(bytes(item)) for item in found.items or ()]
    return Page(items, found.metadata.resource_version, found.metadata.continue_)


def raw_line(kind: Kind[T], data: bytes) -> Line[T]:
    """Read a line whose object is no ordinary one."""
    found = _shallow_if_needed(data, _RawLine)
    raw = bytes(found.object)
    if found.type == "ERROR":
        return Line("ERROR", None, "", raw)
    if found.type == "BOOKMARK":
        return Line("BOOKMARK", None, msgspec.json.decode(raw, type=_Bookmark).metadata.resource_version)
    obj = kind.decode_marked(raw)
    return Line(found.type, obj, obj.metadata.resource_version)


def _shallow_if_needed(data: bytes, kind: type[V]) -> V:
    try:
        return msgspec.json.decode(data, type=kind)
    except RecursionError:
        return msgspec.json.decode(nesting.shallow(data), type=kind)


_collecting = threading.Lock()
_inside = 0


@contextlib.contextmanager
def without_cycles_collected(size: int) -> Iterator[None]:
    """Keep the cyclic garbage collector out while ``size`` bytes are decoded, if they are many. Nests and overlaps."""
    global _inside
    if size < BIG:
        yield
        return
    with _collecting:
        if _inside or gc.isenabled():  # somebody else's "off" stays
            _inside += 1
            gc.disable()
            mine = True
        else:
            mine = False
    try:
        yield
    finally:
        if mine:
            with _collecting:
                _inside -= 1
                if not _inside:
                    gc.enable()
