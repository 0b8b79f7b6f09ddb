"""``make fuzz``: libFuzzer (atheris) looks for bytes that lead a parser of ours to new lines, one parser after another.

What it finds to be worth keeping goes into a folder of the user's cache and is where the next run begins. Bytes that
raise what they may not, take above `LONGEST` seconds or `MEMORY` MiB end the run with 1; they are shown, and belong
into `foreign_parsers` as a value that is tried for ever. atheris comes from the lock file requirements/fuzz.txt.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

PACKAGES = ["edl_agent", "edl_controller"]
LONGEST = 10
"""Seconds that a parser may take for one value, with all its lines counted."""
MEMORY = 2048
"""MiB of the whole process."""
STARTUP = 120
"""Seconds that a parser's process may need beyond its time."""


def fuzz_one(name: str, options: list[str]) -> None:
    """Let libFuzzer try one parser, with its options; ends the process."""
    import atheris

    with atheris.instrument_imports(include=PACKAGES):
        from tests.security.foreign_parsers import PARSERS, run
    parser = PARSERS[name]
    atheris.Setup([name, *options], lambda data: run(parser, data))
    atheris.Fuzz()


def main() -> int:
    """Try all parsers, or those that are named. Returns 1 where one failed."""
    from tests.security.foreign_parsers import PARSERS

    parser = argparse.ArgumentParser(
        "python -m tests.security.fuzz", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="PARSER", help=f"one of: {', '.join(PARSERS)} (default: all)")
    parser.add_argument("--seconds", type=int, default=5, help="for each parser (default: %(default)s)")
    options = parser.parse_args()
    if unknown := [name for name in options.names if name not in PARSERS]:
        parser.error(f"no such parser: {', '.join(unknown)}; there are: {', '.join(PARSERS)}")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = Path(os.environ.get("EDL_CACHE_DIR") or cache / "edl") / "fuzz"
    failed = []
    chosen = options.names or [*PARSERS]
    for number, name in enumerate(chosen, 1):
        corpus = folder / name.replace(" ", "-").replace(",", "")
        corpus.mkdir(parents=True, exist_ok=True)
        for index, good in enumerate(PARSERS[name].good):
            (corpus / f"good-{index}").write_bytes(good)
        done = _run(name, corpus, options.seconds)
        lines = [line for line in done.stderr.splitlines() if line.startswith("Done ")]
        print(f"[{number}/{len(chosen)}] {name}: {lines[-1] if lines else 'FAILED'}", flush=True)
        if done.returncode:
            failed.append(name)
            print(done.stdout + done.stderr[-20_000:], file=sys.stderr)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def _run(name: str, corpus: Path, seconds: int) -> subprocess.CompletedProcess[str]:
    limits = [f"-max_total_time={seconds}", f"-timeout={LONGEST}", f"-rss_limit_mb={MEMORY}", "-max_len=4096"]
    artifacts = f"-artifact_prefix={corpus.parent}/{corpus.name}."
    command = [sys.executable, "-m", __spec__.name, "--one", name, *limits, artifacts, str(corpus)]
    try:
        return subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False, timeout=seconds + STARTUP
        )
    except subprocess.TimeoutExpired as error:
        return subprocess.CompletedProcess(command, 1, "", f"not through within {error.timeout:.0f} s")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        fuzz_one(sys.argv[2], sys.argv[3:])
    sys.exit(main())
