"""``python -m benchmarks [-o json] [--only NAME] [--quick]``."""

import argparse
import os
from collections.abc import Callable, Iterator

from benchmarks import (
    calls,
    controller,
    failover,
    footprint,
    kube,
    kube_jobs,
    local,
    planner,
    registrations,
    sidecar,
    tasks,
)
from benchmarks.ground import say
from benchmarks.table import Row, as_json, as_text, describe_machine
from edl_agent.testing import find_etcd

BENCHMARKS: dict[str, Callable[[bool], Iterator[Row]]] = {
    footprint.IMPORT: footprint.run_import,
    footprint.MEMORY: footprint.run_memory,
    footprint.IDLE: footprint.run_idle,
    calls.NAME: calls.run,
    registrations.CLAIMS: registrations.run_claims,
    registrations.PROCESSES: registrations.run_processes,
    failover.NAME: failover.run,
    tasks.NAME: tasks.run,
    sidecar.NAME: sidecar.run,
    planner.NAME: planner.run,
    controller.NAME: controller.run,
    local.NAME: local.run,
    kube.NAME: kube.run,
    kube_jobs.NAME: kube_jobs.run,
}


def main() -> None:
    """Run the chosen benchmarks, progress on stderr, one table on stdout."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    parser.add_argument(
        "--only", action="append", choices=list(BENCHMARKS), metavar="NAME",
        help=f"one of {', '.join(BENCHMARKS)}; may be repeated",
    )  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="tiny sizes: shows that it works, not how fast")
    options = parser.parse_args()
    binaries = find_etcd()
    before, rows = os.getloadavg()[0], []
    for name in options.only or BENCHMARKS:
        say(f"== {name}")
        for row in BENCHMARKS[name](options.quick):
            rows.append(row)
            say(f"   {row.what}: {row.ours:.4g} {row.unit}, {row.kind} {row.compared:.3g}: {row.verdict}")
    machine = describe_machine(f"{binaries.version} ({binaries.origin})", before, os.getloadavg()[0])
    print((as_json if options.output == "json" else as_text)(rows, machine, options.quick))


if __name__ == "__main__":
    main()
