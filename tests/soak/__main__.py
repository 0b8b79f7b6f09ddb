"""Check a recorded history: ``python -m tests.soak FOLDER --ttl SECONDS``. Exits 1 for a violation."""

from __future__ import annotations

import argparse
from pathlib import Path

from tests.soak.checker import check
from tests.soak.evidence import Limits
from tests.soak.history import read_history


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description="Check a recorded history for I1 to I6.")
    parser.add_argument("folder", type=Path, help="folder with the *.jsonl files of a run")
    parser.add_argument("--ttl", type=float, required=True, help="granted lease TTL in seconds")
    arguments = parser.parse_args()
    verdict = check(read_history(sorted(arguments.folder.glob("*.jsonl"))), Limits(ttl=arguments.ttl))
    for violation in verdict.violations:
        print(violation)
    print(f"{len(verdict.violations)} violations; examined {verdict.examined}")
    return 1 if verdict.violations else 0


if __name__ == "__main__":
    raise SystemExit(main())
