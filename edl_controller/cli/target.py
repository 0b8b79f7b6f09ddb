"""Which cluster a command talks to, and in which namespace: the options that all commands share."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from edl_controller.cli.failures import NotUp
from edl_controller.cli.words import NAMESPACE

if TYPE_CHECKING:
    from edl_controller.cluster.local import LocalCluster
    from edl_controller.machine.local_state import LocalState, Serving

Command = TypeVar("Command", bound=Callable[..., Any])


class _Folder(click.Path):
    """A folder; an empty word, such as that of a variable that is not set, is none, and not the present folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Refuse an empty word."""
        if value == "":
            self.fail("'' is no folder.", param, ctx)
        return super().convert(value, param, ctx)


def root_option(command: Command) -> Command:
    """Add ``--root``: the folder of the cluster of this machine."""
    return click.option(
        "--root",
        type=_Folder(file_okay=False, path_type=Path),
        envvar="EDL_LOCAL_ROOT",
        show_envvar=True,
        help="Folder of the cluster of this machine.  [default: $XDG_STATE_HOME/edl/local]",
    )(command)


def namespace_option(command: Command) -> Command:
    """Add ``-n``: the namespace."""
    return click.option(
        "-n",
        "--namespace",
        type=NAMESPACE,
        envvar="EDL_NAMESPACE",
        default="default",
        show_default=True,
        show_envvar=True,
        help="Namespace.",
    )(command)


def local_state(root: Path | None) -> LocalState:
    """Return the files of the cluster of this machine."""
    from edl_controller.machine.local_state import LocalState, default_root

    return LocalState(root or default_root())


def serving(root: Path | None) -> Serving:
    """Return where the cluster of this machine is reached.

    Raises:
        NotUp: none is up.
    """
    state = local_state(root)
    found = state.serving()
    if found is None:
        raise NotUp(f"no cluster is up in {state.root}")
    return found


@contextlib.contextmanager
def connected(root: Path | None) -> Iterator[LocalCluster]:
    """Connect to the cluster that is up.

    Raises:
        NotUp: none is.
    """
    from edl_controller.cluster.local import LocalCluster

    where = serving(root)
    with LocalCluster(where.endpoints, prefix=where.prefix) as cluster:
        yield cluster
