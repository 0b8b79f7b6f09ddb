"""The pserver slots at work: four pservers hold the four slots, a fifth waits. One is killed, one is stopped, and their
slots are taken again. A real etcd, real processes, real signals; `make demo-slots` runs it.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edl_agent import EtcdClient, EventType, PrefixWatch
from edl_agent.testing import EtcdNotFoundError, EtcdServer, EtcdServerError, spawn_bound_to_parent

if TYPE_CHECKING:
    from rich.table import Table

SLOTS = 4
TTL = 3.0
FIRST_PORT = 7164
PATIENCE = 15.0
"""Seconds for each thing that has to happen."""

LATEST = TTL + 3.0
"""Seconds after a kill by which the slot must be taken: the lease, etcd's look at it each 0.5 s, and a busy machine."""


class Failed(Exception):
    """Something that the demo shows did not happen."""


@dataclass
class Pserver:
    """One `edl-agent register` process."""

    name: str
    port: int
    process: subprocess.Popen[str]
    state: str = "starting"
    index: int | None = None
    epoch: int | None = None
    waits: bool = False


@dataclass
class Change:
    """One line of the log: seconds since the start, and what happened."""

    seconds: float
    text: str


@dataclass
class Demo:
    """The whole scene. All readers put what they see into one queue; the main thread alone changes anything."""

    server: EtcdServer
    screen: Screen
    begin: float = field(default_factory=time.monotonic)
    pservers: dict[str, Pserver] = field(default_factory=dict)
    holders: dict[int, str] = field(default_factory=dict)
    news: queue.SimpleQueue[Any] = field(default_factory=queue.SimpleQueue)
    log: list[Change] = field(default_factory=list)
    freed: dict[int, float] = field(default_factory=dict)
    taken: dict[int, float] = field(default_factory=dict)

    def say(self, text: str) -> None:
        self.log.append(Change(time.monotonic() - self.begin, text))
        self.screen.show(self)

    # --- processes ---

    def start(self, name: str) -> Pserver:
        port = FIRST_PORT + len(self.pservers)
        argv = [sys.executable, "-m", "edl_agent", "register", "--endpoints", self.server.client_url]
        argv += ["--port", str(port), "--host", "127.0.0.1", "--num-pservers", str(SLOTS), "--ttl", f"{TTL:g}"]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("EDL_")}
        process = spawn_bound_to_parent(
            [*argv, "-o", "json"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        pserver = self.pservers[name] = Pserver(name, port, process)
        for stream in (process.stdout, process.stderr):
            threading.Thread(target=self._read, args=(pserver, stream), daemon=True).start()
        return pserver

    def _read(self, pserver: Pserver, stream: Any) -> None:
        for line in stream:
            self.news.put((pserver, line))

    def watch(self, watch: PrefixWatch) -> None:
        """A thread of its own: the slot keys as etcd tells of them, with the time of arrival."""
        for event in watch:
            self.news.put((event, time.monotonic()))

    # --- what is seen ---

    def until(self, done: Any, what: str) -> None:
        """Take in the news until ``done()``. Raises Failed after `PATIENCE` seconds."""
        deadline = time.monotonic() + PATIENCE
        while not done():
            try:
                subject, what_of_it = self.news.get(timeout=min(0.25, max(0.0, deadline - time.monotonic())))
            except queue.Empty:
                if time.monotonic() >= deadline:
                    raise Failed(f"within {PATIENCE:g} s not seen: {what}") from None
                self.screen.show(self)
                continue
            if isinstance(subject, Pserver):
                self._said(subject, what_of_it)
            else:
                self._slot_changed(subject, what_of_it)

    def _said(self, pserver: Pserver, line: str) -> None:
        if not line.startswith("{"):
            if "Waiting for a free slot" in line and not pserver.waits:
                pserver.waits, pserver.state = True, "waiting"
                self.say(f"{pserver.name} waits for a free slot")
            return
        event = json.loads(line)
        pserver.state = event["event"]
        if event["event"] == "registered":
            pserver.index, pserver.epoch = event["index"], event["epoch"]
            self.say(f"{pserver.name} holds slot {pserver.index}, epoch {pserver.epoch}")
        else:
            self.say(f"{pserver.name} {event['event']}")

    def _slot_changed(self, event: Any, seen: float) -> None:
        index = int(event.key.removeprefix(b"/ps/"))
        if event.type is EventType.DELETE:
            self.holders.pop(index, None)
            self.freed[index] = seen
            self.say(f"slot {index} is free")
        else:
            port = int(event.value.rpartition(b":")[2])
            self.holders[index] = next(one.name for one in self.pservers.values() if one.port == port)
            self.taken[index] = seen

    # --- the story ---

    def run(self) -> list[tuple[str, float, str]]:
        self.say(f"etcd {self.server.binaries.version} runs; {SLOTS} slots, lease time {TTL:g} s")
        names = [f"pserver-{letter}" for letter in "abcd"]
        for name in names:
            self.start(name)
        self.until(lambda: len(self.holders) == SLOTS and self._registered(*names), "four pservers on four slots")
        self.start("pserver-e")
        self.until(lambda: self.pservers["pserver-e"].waits, "the fifth waits")

        killed = self._holder(1)
        index, epoch = self._slot(killed)
        self.say(f"SIGKILL to {killed.name}, which holds slot {index}")
        at = time.monotonic()
        killed.process.kill()
        killed.process.wait()
        killed.state = "killed"
        self.until(lambda: self._has_taken("pserver-e", index), "the fifth takes it")
        kill_free, kill_taken = self.freed[index] - at, self.taken[index] - at
        self._higher_epoch("pserver-e", epoch)

        self.start("pserver-f")
        self.until(lambda: self.pservers["pserver-f"].waits, "the sixth waits")
        stopped = self._holder(2)
        index, epoch = self._slot(stopped)
        self.say(f"SIGTERM to {stopped.name}, which holds slot {index}")
        at = time.monotonic()
        stopped.process.terminate()
        self.until(lambda: self._has_taken("pserver-f", index), "the sixth takes it")
        term_free, term_taken = self.freed[index] - at, self.taken[index] - at
        self._higher_epoch("pserver-f", epoch)
        if stopped.process.wait(PATIENCE) != 0:
            raise Failed(f"the stopped pserver ended with {stopped.process.returncode}, not 0")
        self.until(lambda: stopped.state == "released", "the stopped one says so")

        if not kill_taken <= LATEST:
            raise Failed(f"the killed one's slot was taken after {kill_taken:.1f} s, expected at most {LATEST:g} s")
        if not term_taken < TTL / 3:
            raise Failed(f"the stopped one's slot was taken after {term_taken:.1f} s: it was not released at once")
        return [
            ("SIGKILL -> slot free", kill_free, f"a crash: the lease ends {TTL:g} s after its last keepalive"),
            ("SIGKILL -> slot taken again", kill_taken, "the fifth watched and took it; nobody had to act"),
            ("SIGTERM -> slot free", term_free, "a stop revokes the lease: no waiting for its end"),
            ("SIGTERM -> slot taken again", term_taken, "the sixth had it at once; it has a higher epoch"),
        ]

    def _registered(self, *names: str) -> bool:
        return all(self.pservers[name].state == "registered" for name in names)

    def _has_taken(self, name: str, index: int) -> bool:
        return self.holders.get(index) == name and self._registered(name)

    def _holder(self, index: int) -> Pserver:
        return self.pservers[self.holders[index]]

    def _slot(self, pserver: Pserver) -> tuple[int, int]:
        if pserver.index is None or pserver.epoch is None:
            raise Failed(f"{pserver.name} holds no slot")
        return pserver.index, pserver.epoch

    def _higher_epoch(self, name: str, than: int) -> None:
        epoch = self._slot(self.pservers[name])[1]
        if epoch <= than:
            raise Failed(f"{name} has epoch {epoch}, not above {than}: late writes of its predecessor could pass")

    def close(self) -> None:
        for pserver in self.pservers.values():
            if pserver.process.poll() is None:
                pserver.process.terminate()
        for pserver in self.pservers.values():
            try:
                pserver.process.wait(5.0)
            except subprocess.TimeoutExpired:
                pserver.process.kill()
                pserver.process.wait()


# --- the screen ---


class Screen:
    """Plain lines: where stdout is no terminal, or rich is not installed."""

    def __init__(self) -> None:
        self._shown = 0

    def show(self, demo: Demo) -> None:
        for change in demo.log[self._shown :]:
            print(f"{change.seconds:6.2f} s  {change.text}", flush=True)
        self._shown = len(demo.log)

    def close(self) -> None:
        pass


class LiveScreen(Screen):
    """A table that is drawn anew at each change."""

    def __init__(self) -> None:
        from rich.live import Live

        super().__init__()
        self._live = Live(refresh_per_second=8)
        self._live.start()

    def show(self, demo: Demo) -> None:
        from rich.console import Group
        from rich.text import Text

        lines = Text("\n".join(f"{change.seconds:6.2f} s  {change.text}" for change in demo.log))
        self._live.update(Group(slot_table(demo), lines))

    def close(self) -> None:
        self._live.stop()


def slot_table(demo: Demo) -> Table:
    from rich.table import Table

    table = Table(title=f"pservers and slots after {time.monotonic() - demo.begin:.1f} s", title_justify="left")
    for column in ("pserver", "process", "state", "slot", "epoch"):
        table.add_column(column)
    colours = {"registered": "green", "waiting": "yellow", "killed": "red", "released": "cyan"}
    for pserver in demo.pservers.values():
        holds = pserver.state == "registered"
        state = f"[{colours.get(pserver.state, 'white')}]{pserver.state}[/]"
        slot, epoch = (str(pserver.index), str(pserver.epoch)) if holds else ("", "")
        table.add_row(pserver.name, str(pserver.process.pid), state, slot, epoch)
    return table


def summary_table(summary: list[tuple[str, float, str]]) -> Table:
    from rich.table import Table

    table = Table(title="measured", title_justify="left")
    table.add_column("from -> to")
    table.add_column("seconds", justify="right")
    table.add_column("what it shows")
    for what, seconds, meaning in summary:
        table.add_row(what, f"{seconds:.3f}", meaning)
    return table


def write_svg(path: Path, demo: Demo, summary: list[tuple[str, float, str]]) -> None:
    from rich.console import Console

    console = Console(record=True, file=io.StringIO(), width=112)
    console.print(slot_table(demo))
    for change in demo.log:
        console.print(f"{change.seconds:6.2f} s  {change.text}", highlight=False)
    console.print(summary_table(summary))
    picture = console.export_svg(title="make demo-slots", unique_id="demo")
    # The fonts would be fetched from a foreign host by everybody who looks at the picture.
    picture = re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL)
    path.write_text("\n".join(line.rstrip() for line in picture.splitlines()) + "\n", encoding="utf-8")


def has_rich() -> bool:
    try:
        import rich  # noqa: F401
    except ImportError:
        return False
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--svg", type=Path, metavar="PATH", help="write the final table as a picture (needs rich)")
    parser.add_argument("--plain", action="store_true", help="plain lines also on a terminal")
    arguments = parser.parse_args()
    if arguments.svg and not has_rich():
        parser.error("--svg needs rich: pip install 'edl[rich]'")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        server = EtcdServer(auto_compaction="5m")
    except EtcdNotFoundError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    screen = LiveScreen() if sys.stdout.isatty() and has_rich() and not arguments.plain else Screen()
    try:
        with server, EtcdClient(server.client_url) as client, client.watch_prefix("/ps/") as watch:
            demo = Demo(server, screen)
            threading.Thread(target=demo.watch, args=(watch,), daemon=True).start()
            try:
                summary = demo.run()
                screen.show(demo)
                screen.close()
                show_summary(summary)
                if arguments.svg:
                    write_svg(arguments.svg, demo, summary)
            finally:
                demo.close()
    except (Failed, EtcdServerError) as error:
        screen.close()  # first, so that the text is not drawn over
        print(f"demo: failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        screen.close()
    return 0


def show_summary(summary: list[tuple[str, float, str]]) -> None:
    if has_rich() and sys.stdout.isatty():
        from rich.console import Console

        Console().print(summary_table(summary))
    else:
        print()
        for what, seconds, meaning in summary:
            print(f"{what:<28} {seconds:7.3f} s   {meaning}")


if __name__ == "__main__":
    sys.exit(main())
