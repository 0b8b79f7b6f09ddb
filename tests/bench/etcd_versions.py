"""Which etcd versions the tests can run on: what is found on this machine, and the newest, built by
``tests/etcd36``.
"""

from __future__ import annotations

import pytest

from edl_agent.testing import EtcdBinaries, EtcdNotFoundError, binaries_in, find_etcd
from tests.etcd36.build import PROGRAMS, VERSION


def binaries(version: str = "default") -> EtcdBinaries:
    """The binaries for ``default`` (see ``find_etcd``) or ``3.6``. Never builds.

    Raises EtcdNotFoundError, which says what to run, and ValueError for a version that the bench does not know.
    """
    if version == "default":
        return find_etcd()
    if version != "3.6":
        raise ValueError(f"the bench knows the etcd versions 'default' and '3.6', not {version!r}")
    folder = PROGRAMS.cached()
    if folder is None:
        raise EtcdNotFoundError(f"etcd {VERSION} has not been built: run `make etcd36` (needs Go)")
    return binaries_in(folder, "built from its Go module")


def known_versions() -> list[str]:
    """The versions that can be started on this machine, for parametrised tests: "default", and "3.6" where it is
    built.
    """
    return ["default"] + (["3.6"] if PROGRAMS.cached() is not None else [])


VERSIONS = [
    "default",
    pytest.param(
        "3.6",
        marks=[
            pytest.mark.etcd36,
            pytest.mark.skipif("3.6" not in known_versions(), reason="etcd 3.6 is not built: make etcd36 (needs Go)"),
        ],
    ),
]
"""The versions for ``pytest.mark.parametrize``: one that is not built is a skipped test that says so."""
