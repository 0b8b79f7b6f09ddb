"""Reads the settings: flags before environment before file before defaults; every value knows where it came from."""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from edl_controller.errors import ConfigurationError
from edl_controller.program.settings import ROWS, ProgramSettings, Row

CONFIG = "EDL_CONFIG"
"""Names the file where ``--config`` does not."""

_WORDS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
_LARGEST_FILE = 1 << 20
_LOGIN = re.compile(r"//[^/@\"]*@")
"""User and password in a URL: refused later on, and never shown."""


@dataclass(frozen=True)
class EffectiveSettings:
    """Settings, and for each field where it came from: ``default``, or the name of flag, variable or file."""

    settings: ProgramSettings
    origins: Mapping[str, str]

    def render(self) -> str:
        """Return them as a file that would give the same again, each with where it came from."""
        lines = []
        for row in ROWS:
            value = getattr(self.settings, row.name)
            # JSON is YAML.
            lines.append(f"{row.key}: {_LOGIN.sub('//***@', json.dumps(value))}  # {self.origins[row.name]}")
        return "\n".join(lines) + "\n"


def read(flags: Mapping[str, Any], environment: Mapping[str, str], file: Path | None = None) -> EffectiveSettings:
    """Put together what is given.

    Args:
        flags: by field; what was not given is None or an empty tuple.
        environment: variables.
        file: YAML; default: the one that ``EDL_CONFIG`` names, if any.

    Raises:
        ConfigurationError: a value that cannot be, or a key that is none; names the place, and the nearest key.
    """
    if file is None and environment.get(CONFIG):
        file = Path(environment[CONFIG])
    in_file = {} if file is None else _read_file(file)
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for row in ROWS:
        given = flags.get(row.name)
        if given is not None and given != ():
            origin, value = row.flag, given
        elif environment.get(row.environment):
            origin, value = row.environment, environment[row.environment]
        elif in_file.get(row.key) is not None:
            origin, value = f"{row.key} in {file}", in_file[row.key]
        else:
            origins[row.name] = "default"
            continue
        values[row.name] = _checked(row, value, origin)
        origins[row.name] = origin
    return EffectiveSettings(ProgramSettings(**values), origins)


def _read_file(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            text = file.read(_LARGEST_FILE + 1)
    except OSError as error:
        raise ConfigurationError(f"the settings file {path} cannot be read: {error.strerror}") from error
    if len(text) > _LARGEST_FILE:
        raise ConfigurationError(f"the settings file {path} is longer than {_LARGEST_FILE} bytes")
    try:
        found = yaml.safe_load(text)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark is not None else ""
        raise ConfigurationError(f"the settings file {path} is no YAML{where}") from error
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise ConfigurationError(f"the settings file {path} must be a map of settings")
    known = [row.key for row in ROWS]
    for key in found:
        if key not in known:
            near = difflib.get_close_matches(str(key).replace("_", "-"), known, 1, 0.5)
            hint = f"; did you mean {near[0]}?" if near else "; `edl-controller settings` prints all of them"
            raise ConfigurationError(f"the settings file {path}: there is no setting {str(key)[:60]!r}{hint}")
    return found


def _checked(row: Row, value: Any, origin: str) -> Any:
    """Return the value in the type of its field. Raises ConfigurationError."""
    match row.kind:
        case "switch":
            return _switch(value, origin)
        case "list":
            return _list(value, origin)
        case "whole" | "number":
            return _number(row, value, origin)
        case "choice":
            if value not in row.choices:
                raise ConfigurationError(f"{origin}: one of {', '.join(row.choices)}, not {value!r}")
            return value
        case "text":
            if not isinstance(value, str):
                raise ConfigurationError(f"{origin}: must be text, not {value!r}")
            return value.strip()


def _switch(value: Any, origin: str) -> bool:
    if isinstance(value, bool):
        return value
    known = _WORDS.get(value.strip().lower()) if isinstance(value, str) else None
    if known is None:
        raise ConfigurationError(f"{origin}: true or false, not {value!r}")
    return known


def _list(value: Any, origin: str) -> tuple[str, ...]:
    if isinstance(value, str):
        value = value.split(",")
    if not isinstance(value, (list, tuple)) or not all(isinstance(one, str) for one in value):
        raise ConfigurationError(f"{origin}: must be a list of texts, not {value!r}")
    parts = [part.strip() for one in value for part in (one.split(",") if origin.startswith("--") else [one])]
    return tuple(part for part in parts if part)


def _number(row: Row, value: Any, origin: str) -> int | float:
    what = "a whole number" if row.kind == "whole" else "a number"
    try:
        if isinstance(value, bool):
            raise ValueError
        if row.kind == "whole":
            if isinstance(value, float):
                raise ValueError
            number: int | float = int(value)
        else:
            number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise ConfigurationError(f"{origin}: must be {what}, not {value!r}") from None
    least, most = row.least, row.most
    if not math.isfinite(number) or (least is not None and number < least) or (most is not None and number > most):
        raise ConfigurationError(f"{origin}: must be from {least:g} to {most:g}{' ' + row.unit}, not {number!r}")
    return number
