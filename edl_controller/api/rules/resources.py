"""PURE: what containers may ask for. Every amount is read exactly."""

from __future__ import annotations

from decimal import Decimal

from edl_controller.api import quantity
from edl_controller.api.defaults import ALPHA_GPU, GPU
from edl_controller.api.pods import Quantities, ResourceRequirements
from edl_controller.api.rules.found import Found, shown
from edl_controller.api.rules.labels import is_qualified_name
from edl_controller.errors import InvalidQuantity

NATIVE = ("cpu", "memory", "ephemeral-storage")
_HUGE_PAGES = "hugepages-"


def check_resources(found: Found, path: str, resources: ResourceRequirements, pods: int) -> None:
    """Check one role's resources.

    Args:
        found: collects the faults.
        path: of the resources.
        resources: as the user wrote them.
        pods: how many such pods there may be; their sum must fit into 63 bits.
    """
    limits = _amounts(found, f"{path}.limits", resources.limits, pods)
    requests = _amounts(found, f"{path}.requests", resources.requests, pods)
    for name, limit in limits.items():
        request = requests.get(name)
        if request is not None and request > limit:
            found.invalid(f"{path}.requests[{name}]", f"it is more than the limit of {resources.limits[name]}")
        elif request is not None and request != limit and is_extended(name):
            found.invalid(f"{path}.requests[{name}]", f"{name} cannot be shared: it must equal the limit")
    for name in requests.keys() - limits.keys():
        if is_extended(name):
            found.required(f"{path}.limits[{name}]", f"{name} cannot be shared: give a limit equal to the request")


def check_smallest(found: Found, path: str, smallest: ResourceRequirements, usual: ResourceRequirements) -> None:
    """Check to what a trainer may be shrunk: only cpu and memory can be resized in place, and only downwards."""
    check_resources(found, path, smallest, 1)
    for kind, small, large in (
        ("requests", smallest.requests, usual.requests),
        ("limits", smallest.limits, usual.limits),
    ):
        for name, amount in small.items():
            here = f"{path}.{kind}[{name}]"
            if name not in ("cpu", "memory"):
                found.invalid(here, "only cpu and memory can be changed in place")
            elif name not in large:
                found.invalid(here, f"a trainer has no {kind[:-1]} of {name} that could be shrunk")
            elif (_known(amount) or Decimal(0)) > (_known(large[name]) or Decimal(quantity.LARGEST)):
                found.invalid(here, f"it is more than a trainer's usual {large[name]}")


def is_extended(name: str) -> bool:
    """Tell whether it is a device: counted in whole ones, never shared."""
    return name == ALPHA_GPU or not (name in NATIVE or name.startswith(_HUGE_PAGES))


def _amounts(found: Found, path: str, given: Quantities, pods: int) -> dict[str, Decimal]:
    amounts: dict[str, Decimal] = {}
    for name, text in given.items():
        here = f"{path}[{name}]"
        if not _is_resource(name):
            found.invalid(here, f"{shown(name)} is no resource of a container")
        if isinstance(text, float):  # the schema of a resource can allow whole numbers and text only
            found.invalid(here, f"write it as text: '{text}'")
        try:
            amount = quantity.resource(text)
        except InvalidQuantity as error:
            found.invalid(here, str(error))
            continue
        amounts[name] = amount
        if is_extended(name) and amount != int(amount):
            found.invalid(here, f"{name} is counted in whole ones")
        if quantity.units(text) * max(pods, 1) > quantity.LARGEST:
            found.invalid(here, f"{pods} times {text} is more than 2^63-1")
    if ALPHA_GPU in amounts and GPU in amounts and amounts[ALPHA_GPU] != amounts[GPU]:
        found.invalid(f"{path}[{ALPHA_GPU}]", f"it differs from {GPU}, its present name")
    return amounts


def _is_resource(name: str) -> bool:
    if name in NATIVE or name.startswith(_HUGE_PAGES) or name == ALPHA_GPU:
        return is_qualified_name(name)
    # Others need a domain, and Kubernetes' own has none to give.
    return "/" in name and is_qualified_name(name) and not name.partition("/")[0].endswith("kubernetes.io")


def _known(text: str | int | float) -> Decimal | None:
    try:
        return quantity.resource(text)
    except InvalidQuantity:
        return None
