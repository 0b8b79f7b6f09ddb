"""Checkpoints in a folder that all pservers see: `step-N/`, whole from the moment that it has its name."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

from paddle.distributed import fleet

KEPT = 2


def save(folder: Path, executor: Any, about: dict[str, float]) -> None:
    """Have all pservers write what they hold. ``about`` has the ``step``."""
    unfinished = folder / "unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)
    fleet.save_persistables(executor, str(unfinished))
    (unfinished / "about.json").write_text(json.dumps(about))
    os.replace(unfinished, folder / f"step-{about['step']}")
    for old in _steps(folder)[:-KEPT]:
        shutil.rmtree(folder / f"step-{old}")


def newest(folder: Path) -> Path | None:
    """The newest checkpoint, or ``None`` before there is one."""
    steps = _steps(folder)
    return folder / f"step-{steps[-1]}" if steps else None


def restore(checkpoint: Path) -> dict[str, float]:
    """Have all pservers load it, whatever their number was when it was written. Returns what `save` was told."""
    fleet.load_model(str(checkpoint), 0)
    about: dict[str, float] = json.loads((checkpoint / "about.json").read_text())
    return about


def _steps(folder: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("step-")) for path in folder.glob("step-*"))
