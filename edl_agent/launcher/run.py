"""The loop of ``edl-agent run``: gathers what is known, asks `policy`, carries out what it says."""

import logging
import os
import signal
import threading
import time
from collections.abc import Callable

from edl_agent.client import EtcdClient
from edl_agent.launcher import guard, policy
from edl_agent.launcher.before_start import BeforeStart
from edl_agent.launcher.command_run import CommandRun
from edl_agent.launcher.control import Control
from edl_agent.launcher.draining import Draining
from edl_agent.launcher.inbox import Inbox
from edl_agent.launcher.options import Options
from edl_agent.launcher.policy import Situation
from edl_agent.launcher.progress import Progress
from edl_agent.reporting import Reporter
from edl_agent.session import SessionView

_log = logging.getLogger(__name__)

_TICK = 1.0
"""Longest wait in seconds: probes look at how long ago the loop went round."""

_LATE = 10.0
"""Seconds: a loop that has not gone round for so long stands still."""

FORWARDED = (signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH)
"""Given to the command as they come. SIGTERM and SIGINT begin a drain; SIGSTOP, SIGCONT, SIGKILL are not ours."""


class Launcher:
    """One ``edl-agent run``. Made and run on the main thread.

    Args:
        client: not opened yet; shut down by `run`.
        options: see there.
    """

    def __init__(self, client: EtcdClient, options: Options) -> None:
        self._client = client
        self._options = options
        self._rules = options.rules
        self._launched = time.monotonic()
        self._inbox: Inbox[Callable[[], object]] = Inbox()
        self._before = BeforeStart(client, options, self._inbox)
        self._run = CommandRun(client.session, options, self._before, self._inbox)
        self._draining = Draining(client, options, self._inbox)
        self._progress = Progress(options.progress_file, options.progress_timeout)
        self._reporter: Reporter | None = None
        self._control: Control | None = None
        self._waiting = ""
        self.ticked = time.monotonic()

    # --- asked by the control's threads ---

    def not_ready(self) -> str:
        """Why the program is not ready; empty when it is: slot held, command running, not draining."""
        leave, running = self._draining.leave, self._run.running
        if leave is not None:
            return f"draining: {leave.why}"
        if running is None:
            return f"waiting for {self._waiting}" if self._waiting else "not started"
        if running.stage != "running":
            return "the command is being stopped"
        if self._before.slot() != running.slot:
            return "the slot is not held"
        if self._options.ready_file and not os.path.exists(self._options.ready_file):
            return f"{self._options.ready_file} is not there yet"
        return ""

    def not_alive(self) -> str:
        """Why there is no progress; empty when there is. Waiting for etcd is progress: a restart would not help."""
        now = time.monotonic()
        if now - self.ticked > _LATE:
            return f"the launcher's loop has stood still for {now - self.ticked:.0f} s"
        keeper = self._client._keeper
        late = max(_LATE, self._client.session.ttl or 0.0)
        if keeper.thread.is_alive() and now - keeper.ticked > late:
            return f"the keepalive thread has stood still for {now - keeper.ticked:.0f} s"
        began = self._run.began if self._run.running is not None and self._draining.leave is None else None
        return self._progress.stuck(now, began)

    def state(self) -> dict[str, object]:
        """For people, and for ``edl-agent drain``."""
        leave, running, slot = self._draining.leave, self._run.running, self._before.slot()
        return {
            "role": self._rules.role,
            "name": self._options.name,
            "index": slot.index if slot else None,
            "epoch": slot.epoch if slot else None,
            "session": self._client.session.state.value,
            "command": running.stage if running else "none",
            "waiting": self._waiting,
            "draining": leave.why if leave else None,
            "drained": leave is not None and running is None,
            "failures": self._run.failures,
        }

    def drain(self, why: str, seconds: float | None) -> None:
        """Begin a drain."""
        self.leave(why, signal.SIGTERM, seconds)

    def leave(self, why: str, number: int = signal.SIGTERM, seconds: float | None = None) -> None:
        """Begin a drain, as if by a signal. From any thread, and from signal handlers."""
        self._inbox.put(lambda: self._draining.begin(why, number, seconds, running=self._run.running is not None))

    # --- the loop ---

    def run(self) -> tuple[int, str]:
        """Until the end.

        Returns:
            The exit code and its reason.

        Raises:
            EdlAgentError: no slot can ever be held.
        """
        guard.prctl(guard.PR_SET_CHILD_SUBREAPER, 1)
        self._watch_signals()
        self._client.session.listen(self._session_changed)
        try:
            self._open()
            return self._loop()
        finally:
            self._end()

    def _open(self) -> None:
        options = self._options
        self._control = Control(
            self,
            path=options.control,
            required=options.control_required,
            host=options.probe_host,
            port=options.probe_port,
        )
        self._run.control = self._control.path
        if self._control.path and self._rules.on_pserver_change == "signal":
            self._run.pservers_file.path = f"{self._control.path.removesuffix('.sock')}.pservers.json"
        self._draining.open()
        self._reporter = Reporter(self._client, role=self._rules.role, name=options.name)
        self._before.open()

    def _session_changed(self, before: SessionView, after: SessionView) -> None:
        self._run.session_changed(after)
        if before.slot != after.slot or before.state != after.state:
            self._inbox.put(lambda: None)

    def _loop(self) -> tuple[int, str]:
        while True:
            self.ticked = now = time.monotonic()
            action = policy.decide(self._situation(), self._rules, now)
            match action:
                case policy.Exit(code, why):
                    return code, why
                case policy.Wait(what, until):
                    self._wait(what, until - now)
                case policy.Linger(until):
                    self._draining.acknowledge()
                    self._wait("being removed after the drain", until - now)
                case policy.Start():
                    self._run.start()
                case policy.Retry(delay, failures):
                    self._run.retry(delay, failures, now)
                case policy.Checkpoint(until):
                    self._run.checkpoint(until)
                case policy.Stop():
                    self._run.stop(action)
                case policy.Kill(cause, why):
                    self._run.kill(cause, why)
                case policy.Notify():
                    self._run.notify()

    def _situation(self) -> Situation:
        before, run = self._before, self._run
        slot = before.slot()
        pservers = before.pservers()
        return Situation(
            slot=slot,
            pservers=pservers,
            zero_runs=before.zero_runs(pservers),
            leave=self._draining.leave,
            command=run.running,
            ended=run.ended,
            failures=run.failures,
            not_before=before.not_before,
            started=run.started,
            began=self._launched,
            fatal=before.fatal,
        )

    def _wait(self, what: str, seconds: float) -> None:
        if what != self._waiting:
            self._waiting = what
            if self._run.running is None:
                _log.info("Waiting for %s", what)
        self._progress.look(time.monotonic(), self._reporter)
        self._before.say_zero_runs(self._run.running)
        event = self._inbox.get(min(seconds, _TICK))
        while event is not None:
            event()
            event = self._inbox.get(0)
        self._run.reap()

    # --- signals and the end ---

    def _watch_signals(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, frame: self.leave(signal.Signals(number).name, number))
        for number in FORWARDED:
            # What is ignored from the start stays ignored (nohup), by us.
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, lambda number, frame: self._inbox.put(lambda: self._run.signal(number)))
        signal.signal(signal.SIGCHLD, self._child_signal)

    def _child_signal(self, number: int, frame: object) -> None:
        self._run.child_ended = True

    def _end(self) -> None:
        self._run.end()
        leave = self._draining.leave
        if leave is not None and self._reporter is not None:
            self._draining.acknowledge()
            self._reporter.flush(0.2)
        # A lease that cannot be revoked because etcd is away ends by itself; a trainer has to be out in time.
        stopping = threading.Thread(target=self._client.shutdown, name="edl-launcher-shutdown", daemon=True)
        stopping.start()
        hurry = leave is not None and self._rules.role == "trainer"
        stopping.join(max(0.3, leave.until - time.monotonic()) if hurry and leave is not None else None)
        if self._control is not None:
            self._control.close()
        self._run.pservers_file.remove()
        self._inbox.close()
