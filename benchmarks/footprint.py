"""What an agent costs the program it lives in: import time, memory, and processor time while nothing happens."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

from benchmarks.ground import ROOT, Child, children, etcd_in_memory, say
from benchmarks.table import Row, ratio, value

IMPORT, IDLE, MEMORY = "import", "idle", "memory"


def run_import(quick: bool) -> Iterator[Row]:
    """Import time in fresh processes, in pairs; the best of each, since noise only ever adds."""
    rounds = 2 if quick else 15
    code = "import time; t = time.perf_counter(); import {}; print(time.perf_counter() - t)"
    with tempfile.TemporaryDirectory() as cache:
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        environment["PYTHONPYCACHEPREFIX"] = cache

        def seconds(module: str) -> float:
            command = [sys.executable, "-c", code.format(module)]
            done = subprocess.run(
                command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=True
            )
            return float(done.stdout)

        seconds("grpc"), seconds("edl_agent")  # writes the bytecode
        say(f"imports, {rounds} pairs")
        pairs = [(seconds("grpc"), seconds("edl_agent")) for _ in range(rounds)]
    grpc, ours = (min(pair[side] for pair in pairs) * 1e3 for side in (0, 1))
    note = f"against import grpc; best of {rounds} pairs of processes"
    yield ratio(IMPORT, "import edl_agent", "ms", grpc, ours, must=1.5, note=note)


def run_memory(quick: bool) -> Iterator[Row]:
    """Resident and proportional memory of three kinds of processes."""
    del quick
    with etcd_in_memory() as etcd:
        made = {
            "grpc": Child("grpc"),
            "import edl_agent": Child("import"),
            "a registered client": Child("registered", etcd.client_url, "/memory", "7164"),
        }
        say("memory of three processes")
        with children(*made.values()):
            for child in made.values():
                child.hear()
            time.sleep(1.0)
            found = {name: _memory(child.pid) for name, child in made.items()}
    for name in ("import edl_agent", "a registered client"):
        for kind in ("Rss", "Pss"):
            note = "against a process that imports grpc alone; Pss depends on who else shares the pages"
            yield ratio(MEMORY, f"{kind.upper()} of {name}", "MiB", found["grpc"][kind], found[name][kind], note=note)


def run_idle(quick: bool) -> Iterator[Row]:
    """Processor time of an agent that only holds its slot, beside the least that keeps a lease."""
    seconds = 3.0 if quick else 30.0
    with etcd_in_memory() as etcd:
        agent, least = Child("registered", etcd.client_url, "/idle", "7164"), Child("keepalive", etcd.client_url)
        with children(agent, least):
            agent.hear(), least.hear()
            time.sleep(1.0 if quick else 5.0)
            say(f"idle for {seconds:g} s")
            before = [_cpu_seconds(child.pid) for child in (least, agent)]
            threads, start = [], time.monotonic()
            while time.monotonic() < start + seconds:
                threads.append(len(os.listdir(f"/proc/{agent.pid}/task")))
                time.sleep(0.25)
            wall = time.monotonic() - start
            after = [_cpu_seconds(child.pid) for child in (least, agent)]
    baseline, ours = ((end - begin) / wall * 100 for begin, end in zip(before, after, strict=True))
    note = f"over {wall:.0f} s, TTL 10 s; baseline = one raw keepalive stream"
    yield value(
        IDLE, "CPU of one idle registered agent", "% of a core", ours, baseline=baseline, must=0.2, moonshot=0.05,
        note=note,
    )  # fmt: skip
    note = f"most threads minus fewest, looked at each 0.25 s; {min(threads)} threads"
    yield value(IDLE, "threads of an idle agent: change", "", float(max(threads) - min(threads)), must=0.0, note=note)


def _memory(pid: int) -> dict[str, float]:
    """MiB by kind."""
    with open(f"/proc/{pid}/smaps_rollup") as file:
        lines = (line.split() for line in file)
        return {words[0].rstrip(":"): int(words[1]) / 1024 for words in lines if words[0] in ("Rss:", "Pss:")}


def _cpu_seconds(pid: int) -> float:
    """Processor time of a process in seconds, to the nanosecond (``/proc/pid/stat`` counts in steps of 10 ms).

    The number is what clock_getcpuclockid(3) computes.
    """
    return time.clock_gettime((~pid << 3) | 2)
