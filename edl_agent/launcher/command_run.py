"""One run of the command, from its start with a fresh slot to its end: checkpoint, stop, kill, and fencing.

Names: a *run* begins with `CommandRun.start` and ends when the command has ended; the same object holds the next one.
"""

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from edl_agent.launcher import guard, policy
from edl_agent.launcher.before_start import BeforeStart
from edl_agent.launcher.environment import environment
from edl_agent.launcher.inbox import Inbox
from edl_agent.launcher.options import Options
from edl_agent.launcher.policy import Ended, Held, Pservers, Running
from edl_agent.launcher.process import NEVER, Command, Started
from edl_agent.launcher.pservers_file import PserversFile
from edl_agent.live_session import Session
from edl_agent.session import Instant, SessionView

_log = logging.getLogger(__name__)

_MARGIN, _MARGIN_SHARE = 0.5, 0.1
"""The guard kills this many seconds before the deadline, at most that share of the TTL: SIGKILL takes a moment too."""


class CommandRun:
    """The command and its checkpoint hook. Used on the loop's thread, but for `session_changed`.

    Args:
        session: that the slot stands on.
        options: of the launcher.
        before: what is known before a start.
        inbox: of the loop; gets the command's end.

    Attributes:
        running: the present run; ``None`` between runs.
        began: monotonic seconds of the last start.
        ended: how the last run ended and why, until it was answered for by a restart.
        failures: in a row.
        started: whether the command was ever started.
        child_ended: whether there may be an ended child to wait for; set by SIGCHLD too.
        control: path of the launcher's socket, told to the command; empty = none.
        pservers_file: written for the command.
    """

    def __init__(
        self, session: Session, options: Options, before: BeforeStart, inbox: Inbox[Callable[[], object]]
    ) -> None:
        self._session = session
        self._options = options
        self._before = before
        self._inbox = inbox
        self._lock = threading.Lock()
        self._command: Command | None = None
        self._hook: Command | None = None
        self._cause: policy.Cause | None = None
        self.running: Running | None = None
        self.began = 0.0
        self.ended: tuple[Ended, policy.Cause] | None = None
        self.failures = 0
        self.started = False
        self.child_ended = False
        self.control = ""
        self.pservers_file = PserversFile()

    # --- start ---

    def start(self) -> None:
        """Start the command, unless something it needs has just gone: then the loop looks again."""
        slot = self._before.fresh_slot()
        if slot is None:
            return
        pservers = self._before.pservers_at_start()
        if pservers is None:
            return
        if self._options.ready_file:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._options.ready_file)
        self.pservers_file.write(pservers)
        variables = self._variables(slot, pservers)
        with self._lock:
            deadline = _deadline(self._session.view(), slot)
            if deadline is None:
                return
            self._before.used_epoch = slot.epoch
            self.running, self.ended, self._cause = Running(slot, pservers), None, None
            self.started, self.began = True, time.monotonic()
            self._command = Command(self._options.command, variables, deadline, self._news)
        _log.info("Started the command as %s %d (epoch %d)", self._options.rules.role, slot.index, slot.epoch)

    def _variables(self, slot: Held, pservers: Pservers) -> dict[str, str]:
        facts = self._before.facts(slot, pservers, control=self.control, pservers_file=self.pservers_file.path)
        return environment(facts, os.environ)

    # --- fencing: on whatever thread learns of it first ---

    def session_changed(self, after: SessionView) -> None:
        """Move the command's deadline, or kill it where its slot is lost. From any thread."""
        with self._lock:
            command, running = self._command, self.running
            if command is not None and running is not None:
                deadline = _deadline(after, running.slot)
                if deadline is None:
                    command.kill("the slot was lost")
                else:
                    command.extend(deadline)

    # --- on the way ---

    def signal(self, number: int) -> None:
        """Pass a signal on; nothing where no command runs."""
        if self._command is not None:
            self._command.signal(number)

    def notify(self) -> None:
        """Tell the command of the present pservers, by the file and the signal."""
        running, pservers = self.running, self._before.pservers()
        if running is None or self._command is None:
            return
        self.running = replace(running, pservers=pservers)
        self.pservers_file.write(pservers)
        self._command.signal(self._options.change_signal)

    def checkpoint(self, until: float) -> None:
        """Ask for a checkpoint, by signal or by the hook.

        Args:
            until: monotonic seconds; waited for no longer.
        """
        running = self.running
        if running is None or self._command is None:
            return
        self.running = replace(running, stage="checkpointing", until=until)
        if self._options.checkpoint_signal is not None:
            _log.info("Asking the command for a checkpoint by signal %d", self._options.checkpoint_signal)
            self._command.signal(self._options.checkpoint_signal)
            return
        _log.info("Running the checkpoint hook")
        self._hook = Command(self._options.hook, self._variables(running.slot, running.pservers), NEVER, self._news)

    def stop(self, action: policy.Stop) -> None:
        """Ask the command to end."""
        running = self.running
        if running is None or self._command is None:
            return
        _log.info("Stopping the command: %s", action.why)
        self._cause = self._cause or action.cause
        self.running = replace(running, stage="stopping", until=action.until)
        if self._hook is not None:
            self._hook.kill("its time is over")
        self._command.signal(action.signal)

    def kill(self, cause: policy.Cause, why: str) -> None:
        """End the command now."""
        running = self.running
        if running is None or self._command is None:
            return
        _log.warning("Killing the command: %s", why)
        self._cause = self._cause or cause
        self.running = replace(running, stage="killed")
        self._command.kill(why)
        if self._hook is not None:
            self._hook.kill(why)

    # --- end ---

    def _news(self, command: Command, news: Started | Ended) -> None:
        if isinstance(news, Ended):
            ended = news
            self._inbox.put(lambda: self._ended(command, ended))

    def _ended(self, command: Command, ended: Ended) -> None:
        if command is self._hook:
            self._hook = None
            if ended.code:
                _log.error("The checkpoint hook failed: %s", ended.text)
            if self.running is not None and self.running.stage == "checkpointing":
                self.running = replace(self.running, stage="checkpointed")
            return
        if command is not self._command or self.running is None:
            return
        running = self.running
        cause: policy.Cause = self._cause or "itself"
        if cause == "itself" and ended.fenced:
            cause = "lost"
        with self._lock:
            self._command = None
            self.running, self.ended = None, (ended, cause)
        self.child_ended = True  # where the guard was killed, what it was parent of is ours now
        self.failures = policy.failures_after(self.failures, time.monotonic() - self.began, self._options.rules)
        if self._hook is not None:
            self._hook.kill("the command has ended")
        self._before.say_zero_stopped(running.slot)
        _log.info("The command has ended (%s): %s", cause, ended.text)

    def retry(self, delay: float, failures: int, now: float) -> None:
        """Answer for the last end: start again after ``delay`` seconds."""
        ended = self.ended
        _log.warning("%s; restart %d in %.1f s", ended[0].text if ended else "", failures, delay)
        self.ended, self.failures = None, failures
        self._before.not_before = now + delay

    def reap(self) -> None:
        """The first process of a container inherits orphans (of a `kubectl exec`); guards are waited for elsewhere."""
        if not self.child_ended:
            return
        self.child_ended = False
        commands = [command for command in (self._command, self._hook) if command is not None]
        known = {command.guard.pid for command in commands} | {command.pid for command in commands}
        for pid in guard.children():
            if pid not in known:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)

    def end(self) -> None:
        """Kill what still runs, with the launcher."""
        for command in (self._command, self._hook):
            if command is not None:
                command.kill("the launcher ends")
        if self._command is not None:
            # The slot must not be free while the command lives.
            with contextlib.suppress(Exception):
                self._command.guard.wait(5.0)


def _deadline(view: SessionView, slot: Held) -> Instant | None:
    """Until when a command started with ``slot`` may run; ``None``: no longer."""
    if not view.alive or view.lease is None or view.slot is None:
        return None
    if (view.slot.index, view.slot.epoch, view.slot.lease_id) != (slot.index, slot.epoch, slot.lease):
        return None
    seconds = view.lease.ttl - min(_MARGIN, view.lease.ttl * _MARGIN_SHARE)
    return Instant(view.lease.answered.monotonic + seconds, view.lease.answered.boottime + seconds)
