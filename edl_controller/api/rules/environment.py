"""PURE: which variables a job may set. What the controller and the agent say cannot be overridden."""

from __future__ import annotations

import re

from edl_controller.api.names import is_subdomain
from edl_controller.api.pods import EnvVar, KeySelector
from edl_controller.api.rules.found import Found, shown

LIMIT = 500
"""Variables in one list."""
VALUE_LIMIT = 32 * 1024
"""Characters of one value; Linux takes 128 KiB."""

RESERVED_PREFIX = "EDL_"
RESERVED = frozenset(
    {
        # Who the pod is.
        *("NAMESPACE", "POD_IP", "POD_NAME", "POD_UID", "PADDLE_JOB_NAME"),
        # The original controller's.
        *("TRAINERS", "PSERVERS", "ENTRY", "TOPOLOGY", "TRAINER_PACKAGE", "MASTER_IP", "ETCD_IP"),
        *("PADDLE_INIT_NUM_GRADIENT_SERVERS", "PADDLE_INIT_PORT", "PADDLE_INIT_PORTS_NUM"),
        *("PADDLE_INIT_PORTS_NUM_FOR_SPARSE", "PADDLE_INIT_NUM_PASSES", "PADDLE_INIT_PSERVERS"),
        "PADDLE_INIT_TRAINER_ID",
        # The launcher's knowledge.
        *("TRAINING_ROLE", "PADDLE_TRAINING_ROLE", "PADDLE_TRAINER_ID", "PADDLE_PSERVER_ID", "PADDLE_PSERVERS"),
        *("PADDLE_PSERVERS_IP_PORT_LIST", "PADDLE_PSERVER_EPS", "PADDLE_PSERVERS_NUM", "PADDLE_CURRENT_ENDPOINT"),
    }
)
"""Names that users cannot set. ``PYTHONPATH`` and ``LD_PRELOAD`` are theirs: no user's variable reaches a sidecar."""

_NAME = re.compile(r"[A-Za-z_.-][A-Za-z0-9_.-]*")
_SOURCES = ("field_ref", "secret_key_ref", "config_map_key_ref", "resource_field_ref")


def check_environment(found: Found, path: str, variables: tuple[EnvVar, ...]) -> None:
    """Check one list of variables."""
    if len(variables) > LIMIT:
        found.too_long(path, f"there are {len(variables)} variables, at most {LIMIT} are allowed")
    found.unique(path, "name", (variable.name for variable in variables))
    for index, variable in enumerate(variables):
        here = f"{path}[{index}]"
        if len(variable.name) > 253 or not _NAME.fullmatch(variable.name):
            found.invalid(f"{here}.name", f"{shown(variable.name)} is no name of a variable: letters, digits, _ . -")
        elif variable.name in RESERVED or variable.name.startswith(RESERVED_PREFIX):
            found.forbidden(f"{here}.name", f"{variable.name} is set by the controller or the agent")
        found.plain(f"{here}.value", variable.value, VALUE_LIMIT)
        _check_source(found, here, variable)


def _check_source(found: Found, path: str, variable: EnvVar) -> None:
    source = variable.value_from
    if source is None:
        return
    if variable.value:
        found.invalid(f"{path}.valueFrom", "there is a value already")
    if sum(getattr(source, name) is not None for name in _SOURCES) != 1:
        found.invalid(
            f"{path}.valueFrom", "give exactly one of fieldRef, secretKeyRef, configMapKeyRef, resourceFieldRef"
        )
    _check_key(found, f"{path}.valueFrom.secretKeyRef", source.secret_key_ref)
    _check_key(found, f"{path}.valueFrom.configMapKeyRef", source.config_map_key_ref)


def _check_key(found: Found, path: str, selector: KeySelector | None) -> None:
    if selector is None:
        return
    if not is_subdomain(selector.name):
        found.invalid(f"{path}.name", f"{shown(selector.name)} is no name of an object")
    if not selector.key:
        found.required(f"{path}.key", "say which key")
