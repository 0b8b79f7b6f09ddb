"""What users may write for kinds and names, and what the shell offers to complete them."""

from __future__ import annotations

import contextlib
import difflib
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    from edl_controller.api.kinds import Kind

    _Type = click.ParamType[str]
else:
    _Type = click.ParamType  # generic in newer versions of click only

_SHORT = {"po": "pods", "rs": "replicasets", "no": "nodes", "ev": "events", "cm": "configmaps"}
"""Kubernetes' own short names; `tj` is the resource's."""

_PREFIXES = ("tj", "trainingjob", "trainingjobs", "trainingjob.paddlepaddle.org")


def find(word: str) -> Kind[Any]:
    """Return the kind that the user means.

    Raises:
        click.UsageError: there is none of this name; a similar one is named.
    """
    from edl_controller.api.kinds import ALL, find_kind

    kind = find_kind(_SHORT.get(word.lower(), word))
    if kind is None:
        names = ["tj", *(one.plural for one in ALL), *(one.name.lower() for one in ALL)]
        near = difflib.get_close_matches(word.lower(), names, 1)
        kinds = ", ".join(one.plural for one in ALL)
        advice = f"did you mean {near[0]!r}? " if near else ""
        raise click.UsageError(f"there is no kind {word!r}; {advice}Kinds are tj, {kinds}")
    return kind


class NamespaceName(_Type):
    """The name of a namespace, by the rule of Kubernetes: nothing else can be one, nor part of a key."""

    name = "namespace"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Refuse what cannot be one."""
        from edl_controller.api.names import is_label

        if not is_label(value):
            self.fail(f"{value!r} is no name of a namespace: at most 63 of a-z 0-9 -", param, ctx)
        return value


class KindName(_Type):
    """A kind, or ``KIND/NAME``."""

    name = "kind"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Offer all kinds."""
        from edl_controller.api.kinds import ALL

        return [CompletionItem(word) for word in ("tj", *(one.plural for one in ALL)) if word.startswith(incomplete)]


class ObjectName(_Type):
    """The name of an object of the kind before it on the command line; TrainingJobs where there is none.

    ``tj/NAME``, as other commands print it, is taken as well.
    """

    name = "name"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Take a kind before the name away."""
        kind, slash, name = value.partition("/")
        return name if slash and kind.lower() in _PREFIXES else value

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Offer the names that a cluster that is up has; nothing where there is none: no error belongs here."""
        from edl_controller.cli.target import connected

        given = ctx.params
        with contextlib.suppress(Exception), connected(given.get("root")) as cluster:
            kind = find(given.get("kind") or "tj")
            namespace = (given.get("namespace") or "default") if kind.namespaced else ""
            names = [one.metadata.name for one in cluster.list(kind, namespace).items]
            return [CompletionItem(name) for name in names if name.startswith(incomplete)]
        return []


OBJECT_NAME, KIND_NAME, NAMESPACE = ObjectName(), KindName(), NamespaceName()
