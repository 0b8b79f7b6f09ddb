"""Running the programs that a release is made with; what they said when one fails."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

LAST_LINES = 25
"""Shown of a program that failed."""


class ReleaseError(Exception):
    """What keeps this commit from being released, in words for whoever releases it."""


def run(
    what: str,
    command: Sequence[str],
    *,
    cwd: Path,
    environment: Mapping[str, str] | None = None,
    umask: int = -1,
    timeout: float = 900.0,
    meanings: Mapping[int, str] | None = None,
) -> str:
    """Run a program to its end and return its output.

    Args:
        what: what it does, for the message.
        command: program and arguments.
        cwd: where it runs.
        environment: all its variables; None: this process's.
        umask: of the files that it makes; -1: this process's.
        timeout: seconds.
        meanings: of exit statuses; such a one is told by this word, followed by what the program said.

    Raises:
        ReleaseError: it failed, was not found, or did not end.
    """
    try:
        done = subprocess.run(
            command, cwd=cwd, env=environment, umask=umask, timeout=timeout, capture_output=True, text=True, check=False
        )
    except OSError as error:
        raise ReleaseError(f"{what}: {error}") from error
    except subprocess.TimeoutExpired as error:
        raise ReleaseError(f"{what}: not through within {timeout:.0f} s") from error
    if done.returncode != 0:
        said = "\n".join((done.stdout + done.stderr).strip().splitlines()[-LAST_LINES:])
        raise ReleaseError(f"{what}: {(meanings or {}).get(done.returncode, f'exit status {done.returncode}')}\n{said}")
    return done.stdout
