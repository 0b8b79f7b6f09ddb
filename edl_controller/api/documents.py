"""PURE: text -> documents, by safe loaders only: YAML or JSON, no duplicate keys, no bombs, no objects."""

from __future__ import annotations

import json
from collections.abc import Hashable
from typing import Any

import yaml

from edl_controller.api.nesting import DEPTH_LIMIT
from edl_controller.errors import Fault, InvalidTrainingJob

TEXT_LIMIT = 8 * 1024 * 1024
"""Bytes of one text with all its documents."""
NODES_LIMIT = 50_000
"""Values of one document after all its aliases are written out."""

_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_Base):  # type: ignore[misc]
    """The safe loader; a key given twice is an error, and so is a key that is no text."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag not in (
                "tag:yaml.org,2002:str",
                "tag:yaml.org,2002:merge",
            ):
                raise yaml.constructor.ConstructorError(
                    None, None, "a key is no text: put it into quotes", key.start_mark
                )
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value!a} is given twice", key.start_mark)
            seen.add(key.value)
        mapping: dict[Hashable, Any] = super().construct_mapping(node, deep=deep)
        return mapping


def load(text: str | bytes) -> list[Any]:
    """Return the documents of a text, without the empty ones.

    Raises:
        InvalidTrainingJob: it is no text in UTF-8, neither YAML nor JSON, or too large.
    """
    if len(text) > TEXT_LIMIT:
        raise _refused("TooLong", f"the text has more than {TEXT_LIMIT} bytes")
    try:
        plain = text if isinstance(text, str) else text.decode("utf-8-sig")
        if plain.lstrip()[:1] in ("{", "["):
            found = _json(plain)
            if found is not None:
                return found
        _check_depth(plain)
        return [document for document in _yaml(plain) if document is not None]
    except InvalidTrainingJob:
        raise
    except (yaml.MarkedYAMLError, yaml.reader.ReaderError) as error:
        raise _refused("Invalid", f"it is no YAML: {_explain(error)}") from None
    except RecursionError:
        raise _refused("TooLong", f"it is nested more than {DEPTH_LIMIT} deep") from None
    except ValueError as error:  # UTF-8, or a number that is no number
        raise _refused("Invalid", f"it cannot be read: {str(error)[:200]}") from None


def _json(text: str) -> list[Any] | None:
    """Return the one document of JSON text, None where it is not JSON (it may still be YAML)."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            twice = next(key for index, (key, _) in enumerate(pairs) if key in dict(pairs[:index]))
            raise _refused("Duplicate", f"{twice!a} is given twice")
        return found

    def finite(text: str) -> float:
        raise _refused("Invalid", f"{text} is no number")

    try:
        return [json.loads(text, object_pairs_hook=unique, parse_constant=finite)]
    except json.JSONDecodeError:
        return None


def _check_depth(text: str) -> None:
    """Look at the events first: the loader calls itself for each level, in C, where that can end the process."""
    depth = 0
    for event in yaml.parse(text, Loader=_Base):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > DEPTH_LIMIT:
                raise _refused("TooLong", f"it is nested more than {DEPTH_LIMIT} deep")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _yaml(text: str) -> list[Any]:
    loader = _Loader(text)
    found: list[Any] = []
    try:
        while loader.check_node():
            node = loader.get_node()
            if _size(node, {}) > NODES_LIMIT:
                raise _refused("TooLong", f"it has more than {NODES_LIMIT} values once its aliases are written out")
            found.append(loader.construct_document(node))
    finally:
        loader.dispose()
    return found


def _size(node: yaml.Node, known: dict[int, int]) -> int:
    """Count the values below a node as if every alias were written out."""
    size = known.get(id(node))
    if size is None:
        known[id(node)] = NODES_LIMIT + 1  # while it is open: an alias to it would never end
        size = 1
        if isinstance(node, yaml.SequenceNode):
            size += sum(_size(item, known) for item in node.value)
        elif isinstance(node, yaml.MappingNode):
            size += sum(_size(key, known) + _size(value, known) for key, value in node.value)
        known[id(node)] = size
    return size


def _explain(error: yaml.MarkedYAMLError | yaml.reader.ReaderError) -> str:
    if isinstance(error, yaml.reader.ReaderError):
        return f"{error.reason} at character {error.position}"
    mark = error.problem_mark or error.context_mark
    place = f" (line {mark.line + 1}, column {mark.column + 1})" if mark is not None else ""
    return f"{error.problem or error.context}{place}"


def _refused(reason: str, message: str) -> InvalidTrainingJob:
    return InvalidTrainingJob([Fault("", reason, message)])
