"""PURE: which labels, annotations and node selectors a job may set. Controller-owned keys cannot be taken."""

from __future__ import annotations

import re

from edl_controller.api.names import ROLE_LABELS, is_subdomain
from edl_controller.api.rules.found import Found, shown
from edl_controller.api.settings import Settings
from edl_controller.api.v1 import GROUP

ANNOTATIONS_LIMIT = 64 * 1024
"""Characters of all annotations of one template."""

# The labels by which the controllers, ours and Kubernetes', know their pods.
_OWNED = {*ROLE_LABELS.values(), "job-name", "controller-uid", "pod-template-hash"}
_OWNED_DOMAINS = (GROUP, "kubernetes.io", "k8s.io")
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?")
_NAME_LIMIT = 63


def check_labels(found: Found, path: str, labels: dict[str, str], settings: Settings) -> None:
    """Check labels that are put on pods."""
    for key, value in labels.items():
        _check_key(found, f"{path}[{key}]", key)
        _check_owner(found, f"{path}[{key}]", key, settings)
        check_label_value(found, f"{path}[{key}]", value)


def check_annotations(found: Found, path: str, annotations: dict[str, str], settings: Settings) -> None:
    """Check annotations that are put on pods."""
    for key in annotations:
        _check_key(found, f"{path}[{key}]", key)
        _check_owner(found, f"{path}[{key}]", key, settings)
    size = sum(len(key) + len(value) for key, value in annotations.items())
    if size > ANNOTATIONS_LIMIT:
        found.too_long(path, f"they have {size} characters, at most {ANNOTATIONS_LIMIT} are allowed")


def check_selector(found: Found, path: str, selector: dict[str, str]) -> None:
    """Check a node selector: any label of a node may be asked for."""
    for key, value in selector.items():
        _check_key(found, f"{path}[{key}]", key)
        check_label_value(found, f"{path}[{key}]", value)


def check_own_labels(found: Found, labels: dict[str, str]) -> None:
    """Check the labels of the TrainingJob itself."""
    check_selector(found, "metadata.labels", labels)


def is_qualified_name(key: str) -> bool:
    """Tell whether it is a key as Kubernetes wants it: ``name`` or ``prefix.domain/name``."""
    prefix, slash, name = key.rpartition("/")
    return (not slash or is_subdomain(prefix)) and len(name) <= _NAME_LIMIT and _NAME.fullmatch(name) is not None


def check_label_value(found: Found, path: str, value: str) -> None:
    """Check the value of a label."""
    if value and (len(value) > _NAME_LIMIT or not _NAME.fullmatch(value)):
        found.invalid(
            path, f"{shown(value)} is no label value: at most 63 of A-Z a-z 0-9 - _ . inside letters or digits"
        )


def _check_key(found: Found, path: str, key: str) -> None:
    if not is_qualified_name(key):
        found.invalid(
            path, f"{shown(key)} is no key: at most 63 of A-Z a-z 0-9 - _ ., after an optional domain and '/'"
        )


def _check_owner(found: Found, path: str, key: str, settings: Settings) -> None:
    prefix = key.rpartition("/")[0]
    owned = key in _OWNED or any(prefix == domain or prefix.endswith(f".{domain}") for domain in _OWNED_DOMAINS)
    if owned and prefix not in settings.kubernetes_prefixes:
        found.forbidden(path, f"{shown(key)} belongs to the controllers")
