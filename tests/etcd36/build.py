"""Build etcd and etcdctl 3.6.16 from their Go modules into a cache folder outside the checkout.

Run as ``python -m tests.etcd36.build``: it prints the folder with the two programs as the last line of stdout and exits
0. It exits 3, with the reason on stderr, where there is no Go to build with (``make test`` then goes on with two etcd
versions), and 1 when a build fails. A second run finds the programs and builds nothing.

The tests look for the same folder through ``PROGRAMS.cached()``, which never builds.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.bench.go_programs import GoPrograms

VERSION = "3.6.16"
"""Version of etcd, as required in the go.mod beside this file."""

PROGRAMS = GoPrograms(
    name="etcd",
    version=VERSION,
    module=Path(__file__).resolve().parent,
    packages={"etcd": "go.etcd.io/etcd/server/v3", "etcdctl": "go.etcd.io/etcd/etcdctl/v3"},
)

if __name__ == "__main__":
    sys.exit(PROGRAMS.main())
