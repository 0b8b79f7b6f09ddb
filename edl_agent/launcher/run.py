"""The loop of ``edl-agent run``: gathers what is known, asks `policy`, carries out what it says."""

import contextlib
import json
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from edl_agent import errors
from edl_agent.address import route_source
from edl_agent.claiming import Claims
from edl_agent.client import EtcdClient
from edl_agent.drain import Drain
from edl_agent.keys import parse_desired
from edl_agent.launcher import guard, policy
from edl_agent.launcher.control import Control
from edl_agent.launcher.environment import Facts, environment
from edl_agent.launcher.inbox import Inbox
from edl_agent.launcher.policy import Ended, Held, Leave, Pservers, Rules, Running, Situation
from edl_agent.launcher.process import NEVER, Command, Started
from edl_agent.launcher.progress import Progress
from edl_agent.launcher.trainer_zero import TrainerZero
from edl_agent.membership import Members, Membership
from edl_agent.reporting import Reporter
from edl_agent.session import Instant, SessionState, SessionView

_log = logging.getLogger(__name__)

_TICK = 1.0
"""Longest wait in seconds: probes look at how long ago the loop went round."""

_LATE = 10.0
"""Seconds: a loop that has not gone round for so long stands still."""

_RENEW_TIMEOUT = 2.0
_PAUSE = 0.5
"""Seconds before a start that failed for want of etcd is tried again."""

_MARGIN, _MARGIN_SHARE = 0.5, 0.1
"""The guard kills this many seconds before the deadline, at most that share of the TTL: SIGKILL takes a moment too."""

FORWARDED = (signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH)
"""Given to the command as they come. SIGTERM and SIGINT begin a drain; SIGSTOP, SIGCONT, SIGKILL are not ours."""


@dataclass(frozen=True, slots=True)
class Options:
    """Everything beyond the client's settings.

    Attributes:
        command: list of arguments, never a shell string.
        rules: for `policy`.
        name: under which this process reports and is asked to drain.
        endpoints: as exported.
        prefix: as exported.
        port: of the program.
        host: to register or to tell, ``None`` = as the client finds it.
        num_trainers: as told by the user.
        tf_config: whether to write ``TF_CONFIG``.
        socket: of a sidecar, exported.
        control: path of the launcher's own socket, exported; empty = none.
        control_required: whether to end where it cannot be made.
        probe_host: for probes over HTTP.
        probe_port: ``None`` = none.
        progress_file: that the command writes now and then.
        progress_timeout: seconds without a change of it after which the command is stuck.
        hook: checkpoint command of a pserver, run before it is stopped.
        checkpoint_signal: sent to the command in place of a hook.
        change_signal: for new pservers.
        drain_seconds: from SIGTERM to the end.
        ready_file: that the program makes when it serves; removed before each start.
    """

    command: Sequence[str]
    rules: Rules
    name: str
    endpoints: str = ""
    prefix: str = ""
    port: int | None = None
    host: str | None = None
    num_trainers: int | None = None
    tf_config: bool = False
    socket: str = ""
    control: str = ""
    control_required: bool = False
    probe_host: str = "127.0.0.1"
    probe_port: int | None = None
    progress_file: str = ""
    progress_timeout: float = 300.0
    hook: Sequence[str] = ()
    checkpoint_signal: int | None = None
    change_signal: int = signal.SIGHUP
    drain_seconds: float = 20.0
    ready_file: str = ""


@dataclass(slots=True)
class _State:
    """What the loop remembers beyond what the client knows."""

    running: Running | None = None
    began: float = 0.0
    cause: policy.Cause | None = None
    ended: tuple[Ended, policy.Cause] | None = None
    failures: int = 0
    not_before: float = 0.0
    started: bool = False
    leave: Leave | None = None
    fatal: tuple[int, str] | None = None
    used_epoch: int = 0
    acknowledged: bool = False


_Event = Callable[[], object]


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
        self._state = _State()
        self._launched = time.monotonic()
        self._inbox: Inbox[_Event] = Inbox()
        self._lock = threading.Lock()
        self._command: Command | None = None
        self._hook: Command | None = None
        self._membership: Membership | None = None
        self._members: Members | None = None
        self._zero: TrainerZero | None = None
        self._drain: Drain | None = None
        self._reporter: Reporter | None = None
        self._waiting = ""
        self._child_ended = False
        self._control: Control | None = None
        self._progress = Progress(options.progress_file, options.progress_timeout)
        self._pservers_file = ""
        self.ticked = time.monotonic()

    # --- asked by the control's threads ---

    def not_ready(self) -> str:
        """Why the program is not ready; empty when it is: slot held, command running, not draining."""
        state, running = self._state, self._state.running
        if state.leave is not None:
            return f"draining: {state.leave.why}"
        if running is None:
            return f"waiting for {self._waiting}" if self._waiting else "not started"
        if running.stage != "running":
            return "the command is being stopped"
        if self._slot() != running.slot:
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
        began = self._state.began if self._state.running is not None and self._state.leave is None else None
        return self._progress.stuck(now, began)

    def state(self) -> dict[str, object]:
        """For people, and for ``edl-agent drain``."""
        state, running = self._state, self._state.running
        slot = self._slot()
        return {
            "role": self._rules.role,
            "name": self._options.name,
            "index": slot.index if slot else None,
            "epoch": slot.epoch if slot else None,
            "session": self._client.session.state.value,
            "command": running.stage if running else "none",
            "waiting": self._waiting,
            "draining": state.leave.why if state.leave else None,
            "drained": state.leave is not None and running is None,
            "failures": state.failures,
        }

    def drain(self, why: str, seconds: float | None) -> None:
        """Begin a drain."""
        self.leave(why, signal.SIGTERM, seconds)

    def leave(self, why: str, number: int = signal.SIGTERM, seconds: float | None = None) -> None:
        """Begin a drain, as if by a signal. From any thread, and from signal handlers."""
        self._inbox.put(lambda: self._leave(why, number, seconds))

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
        if self._control.path and self._rules.on_pserver_change == "signal":
            self._pservers_file = f"{self._control.path.removesuffix('.sock')}.pservers.json"
        if self._rules.needs_pservers:
            self._membership = Membership(self._client)
            self._membership.on_change(self._members_changed)
        self._drain = Drain(self._client, self._options.name)
        for register in (self._drain.on_request, self._drain.on_withdrawn):
            register(lambda drain: self._inbox.put(self._drain_changed))
        self._reporter = Reporter(self._client, role=self._rules.role, name=self._options.name)
        if self._rules.zero_first and self._rules.role == "trainer":
            self._zero = TrainerZero(self._client, lambda: self._inbox.put(lambda: None))
        threading.Thread(target=self._hold, name="edl-launcher-slot", daemon=True).start()

    def _members_changed(self, members: Members) -> None:
        self._members = members
        self._inbox.put(lambda: None)

    def _hold(self) -> None:
        """Claim the slot, again after each loss; what ends it for good ends the launcher."""
        try:
            while True:
                if self._rules.role == "pserver":
                    self._client.register(self._options.port or 0)
                else:
                    self._client.register_trainer(self._trainer_address())
                self._client.session.lost.wait()
        except errors.ClientClosed:
            return
        except BaseException as error:
            failure = error
            self._inbox.put(lambda: self._failed(failure))

    def _trainer_address(self) -> str:
        if self._options.port is None:
            return self._options.name
        host = self._options.host or self._host()
        return f"[{host}]:{self._options.port}" if ":" in host else f"{host}:{self._options.port}"

    def _failed(self, error: BaseException) -> None:
        code = policy.EXIT_LOST if isinstance(error, errors.LeaseLost) else 5
        self._state.fatal = (code, str(error))

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
                    self._acknowledge()
                    self._wait("being removed after the drain", until - now)
                case policy.Start():
                    self._start()
                case policy.Retry(delay, failures):
                    ended = self._state.ended
                    _log.warning("%s; restart %d in %.1f s", ended[0].text if ended else "", failures, delay)
                    self._state.ended, self._state.failures = None, failures
                    self._state.not_before = now + delay
                case policy.Checkpoint(until):
                    self._checkpoint(until)
                case policy.Stop():
                    self._stop(action)
                case policy.Kill(cause, why):
                    self._kill(cause, why)
                case policy.Notify():
                    self._notify()

    def _wait(self, what: str, seconds: float) -> None:
        if what != self._waiting:
            self._waiting = what
            if self._state.running is None:
                _log.info("Waiting for %s", what)
        self._progress.look(time.monotonic(), self._reporter)
        if self._zero is not None:
            self._say_zero_runs()
        event = self._inbox.get(min(seconds, _TICK))
        while event is not None:
            event()
            event = self._inbox.get(0)
        self._reap()

    def _situation(self) -> Situation:
        state, slot = self._state, self._slot()
        pservers = self._pservers()
        return Situation(
            slot=slot,
            pservers=pservers,
            zero_runs=self._zero is None or self._zero.runs_with(pservers),
            leave=state.leave,
            command=state.running,
            ended=state.ended,
            failures=state.failures,
            not_before=state.not_before,
            started=state.started,
            began=self._launched,
            fatal=state.fatal,
        )

    def _slot(self) -> Held | None:
        slot = self._client.session.view().slot
        return None if slot is None else Held(slot.index, slot.epoch, slot.lease_id)

    def _pservers(self) -> Pservers:
        # As last told, since a read here would hold up the loop where etcd is away. News come while the watch is alive.
        members = self._members
        if members is None:
            return Pservers()
        return policy.as_pservers(
            ((one.index, one.address, one.epoch) for one in members.pservers), members.desired, members.complete
        )

    # --- start ---

    def _start(self) -> None:
        slot = self._fresh_slot()
        if slot is None:
            return
        pservers = self._pservers() if self._membership is not None else self._pservers_once()
        if self._rules.needs_pservers and not pservers.complete:
            return
        if self._options.ready_file:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._options.ready_file)
        self._write_pservers(pservers)
        variables = environment(self._facts(slot, pservers), os.environ)
        with self._lock:
            view = self._client.session.view()
            deadline = self._deadline(view, slot)
            if deadline is None:
                return
            state = self._state
            state.used_epoch = slot.epoch
            state.running, state.ended, state.cause = Running(slot, pservers), None, None
            state.started, state.began = True, time.monotonic()
            self._command = Command(self._options.command, variables, deadline, self._news)
        _log.info("Started the command as %s %d (epoch %d)", self._rules.role, slot.index, slot.epoch)

    def _fresh_slot(self) -> Held | None:
        """The slot with an epoch that no command has been told before; ``None``: look again."""
        if self._client.session.state is not SessionState.CONNECTED:
            # While etcd does not answer nothing new is started, and nothing is waited for here.
            self._state.not_before = time.monotonic() + _PAUSE
            return None
        slot = self._slot()
        if slot is None or slot.epoch > self._state.used_epoch:
            return slot
        try:
            self._client.renew_epoch(_RENEW_TIMEOUT)
        except errors.ClientClosed:
            raise
        except errors.EdlAgentError as error:
            _log.warning("The slot's key cannot be put anew: %s", error)
            self._state.not_before = time.monotonic() + _PAUSE
            return None
        return self._slot()

    def _pservers_once(self) -> Pservers:
        """For a pserver, which does not watch the others: one look."""
        client = self._client
        with contextlib.suppress(errors.EdlAgentError):
            board = Claims(client._kv, client._keys.pservers, client._clock, _RENEW_TIMEOUT).look()
            desired = parse_desired(board.desired) if board.desired else None
            held = sorted((one for one in board.slots if one.lease), key=lambda one: one.index)
            peers = [(one.index, one.address.decode(errors="replace"), one.mod_revision) for one in held]
            complete = desired is not None and [one.index for one in held] == list(range(desired))
            return policy.as_pservers(peers, desired, complete)
        return Pservers()

    def _facts(self, slot: Held, pservers: Pservers) -> Facts:
        options = self._options
        address = self._client.session.address or ""
        trainers: tuple[tuple[int, str], ...] = ()
        if options.tf_config:
            trainers = self._trainers()
        return Facts(
            role=self._rules.role,
            index=slot.index,
            epoch=slot.epoch,
            name=options.name,
            address=address,
            host=options.host or os.environ.get("POD_IP") or self._host(),
            port=options.port,
            pservers=pservers.addresses,
            num_pservers=pservers.desired,
            num_trainers=options.num_trainers,
            trainers=trainers,
            endpoints=options.endpoints,
            prefix=options.prefix,
            socket=options.socket,
            control=self._control.path if self._control is not None else "",
            pservers_file=self._pservers_file,
            tf_config=options.tf_config,
        )

    def _host(self) -> str:
        connection = self._client._connection
        try:
            return route_source(connection.choice.endpoint or connection.endpoints[0])
        except errors.Unavailable:
            return "127.0.0.1"

    def _trainers(self) -> tuple[tuple[int, str], ...]:
        family = self._client._keys.trainers
        with contextlib.suppress(errors.EdlAgentError):
            pairs = self._client.get_prefix("/trainer/", _RENEW_TIMEOUT)
            found = [(family.index(self._client._keys.full(pair.key)), pair.value) for pair in pairs if pair.lease]
            return tuple((index, value.decode(errors="replace")) for index, value in found if index is not None)
        return ()

    # --- fencing: on whatever thread learns of it first ---

    def _session_changed(self, before: SessionView, after: SessionView) -> None:
        with self._lock:
            command, running = self._command, self._state.running
            if command is not None and running is not None:
                deadline = self._deadline(after, running.slot)
                if deadline is None:
                    command.kill("the slot was lost")
                else:
                    command.extend(deadline)
        if before.slot != after.slot or before.state != after.state:
            self._inbox.put(lambda: None)

    @staticmethod
    def _deadline(view: SessionView, slot: Held) -> Instant | None:
        """Until when a command started with ``slot`` may run; ``None``: no longer."""
        if not view.alive or view.lease is None or view.slot is None:
            return None
        if (view.slot.index, view.slot.epoch, view.slot.lease_id) != (slot.index, slot.epoch, slot.lease):
            return None
        seconds = view.lease.ttl - min(_MARGIN, view.lease.ttl * _MARGIN_SHARE)
        return Instant(view.lease.answered.monotonic + seconds, view.lease.answered.boottime + seconds)

    # --- stop ---

    def _stop(self, action: policy.Stop) -> None:
        running = self._state.running
        if running is None or self._command is None:
            return
        _log.info("Stopping the command: %s", action.why)
        self._state.cause = self._state.cause or action.cause
        self._state.running = replace(running, stage="stopping", until=action.until)
        if self._hook is not None:
            self._hook.kill("its time is over")
        self._command.signal(action.signal)

    def _kill(self, cause: policy.Cause, why: str) -> None:
        running = self._state.running
        if running is None or self._command is None:
            return
        _log.warning("Killing the command: %s", why)
        self._state.cause = self._state.cause or cause
        self._state.running = replace(running, stage="killed")
        self._command.kill(why)
        if self._hook is not None:
            self._hook.kill(why)

    def _checkpoint(self, until: float) -> None:
        running = self._state.running
        if running is None or self._command is None:
            return
        self._state.running = replace(running, stage="checkpointing", until=until)
        if self._options.checkpoint_signal is not None:
            _log.info("Asking the command for a checkpoint by signal %d", self._options.checkpoint_signal)
            self._command.signal(self._options.checkpoint_signal)
            return
        _log.info("Running the checkpoint hook")
        variables = environment(self._facts(running.slot, running.pservers), os.environ)
        self._hook = Command(self._options.hook, variables, NEVER, self._news)

    def _notify(self) -> None:
        running, pservers = self._state.running, self._pservers()
        if running is None or self._command is None:
            return
        self._state.running = replace(running, pservers=pservers)
        self._write_pservers(pservers)
        self._command.signal(self._options.change_signal)

    def _write_pservers(self, pservers: Pservers) -> None:
        """By atomic rename, before the command is told to read it."""
        if not self._pservers_file:
            return
        value = {
            "v": 1,
            "desired": pservers.desired,
            "complete": pservers.complete,
            "pservers": [{"index": one.index, "address": one.address, "epoch": one.epoch} for one in pservers.held],
            "time": time.time(),
        }
        new = f"{self._pservers_file}.new"
        try:
            with open(new, "w") as file:
                json.dump(value, file)
            os.replace(new, self._pservers_file)
        except OSError as error:
            _log.warning("The list of pservers could not be written to %s: %s", self._pservers_file, error)

    # --- news ---

    def _news(self, command: Command, news: Started | Ended) -> None:
        if isinstance(news, Ended):
            ended = news
            self._inbox.put(lambda: self._ended(command, ended))

    def _ended(self, command: Command, ended: Ended) -> None:
        state = self._state
        if command is self._hook:
            self._hook = None
            if ended.code:
                _log.error("The checkpoint hook failed: %s", ended.text)
            if state.running is not None and state.running.stage == "checkpointing":
                state.running = replace(state.running, stage="checkpointed")
            return
        if command is not self._command or state.running is None:
            return
        running = state.running
        cause: policy.Cause = state.cause or "itself"
        if cause == "itself" and ended.fenced:
            cause = "lost"
        with self._lock:
            self._command = None
            state.running, state.ended = None, (ended, cause)
        self._child_ended = True  # where the guard was killed, what it was parent of is ours now
        state.failures = policy.failures_after(state.failures, time.monotonic() - state.began, self._rules)
        if self._hook is not None:
            self._hook.kill("the command has ended")
        if self._zero is not None:
            self._zero.stopped(running.slot)
        _log.info("The command has ended (%s): %s", cause, ended.text)

    def _leave(self, why: str, number: int, seconds: float | None) -> None:
        until = time.monotonic() + (self._options.drain_seconds if seconds is None else seconds)
        before = self._state.leave
        if before is not None and not before.requested:
            return  # one is under way, and its deadline stands
        if before is not None:
            until = min(until, before.until) if self._state.running is not None else until
        _log.info("Draining: %s", why)
        self._state.leave = Leave(why, number, until)
        if self._drain is not None:
            self._drain.start(why, max(0.0, until - time.monotonic()))

    def _drain_changed(self) -> None:
        drain, state = self._drain, self._state
        if drain is None or (state.leave is not None and not state.leave.requested):
            return
        state.acknowledged = False
        left = drain.deadline
        if left is None:
            state.leave = None
            return
        why = f"drain requested: {drain.reason or 'no reason given'}"
        state.leave = Leave(why, signal.SIGTERM, time.monotonic() + left, requested=True)

    def _acknowledge(self) -> None:
        if self._drain is not None and not self._state.acknowledged:
            self._state.acknowledged = self._drain.acknowledge()

    def _say_zero_runs(self) -> None:
        running = self._state.running
        if self._zero is None or running is None or running.stage != "running" or running.slot.index != 0:
            return
        if not self._options.ready_file or os.path.exists(self._options.ready_file):
            self._zero.running(running.slot, running.pservers)

    # --- processes and signals ---

    def _watch_signals(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, frame: self.leave(signal.Signals(number).name, number))
        for number in FORWARDED:
            # What is ignored from the start stays ignored (nohup), by us.
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, lambda number, frame: self._inbox.put(lambda: self._forward(number)))
        signal.signal(signal.SIGCHLD, self._child_signal)

    def _child_signal(self, number: int, frame: object) -> None:
        self._child_ended = True

    def _forward(self, number: int) -> None:
        if self._command is not None:
            self._command.signal(number)

    def _reap(self) -> None:
        """The first process of a container inherits orphans (of a `kubectl exec`); guards are waited for elsewhere."""
        if not self._child_ended:
            return
        self._child_ended = False
        commands = [command for command in (self._command, self._hook) if command is not None]
        known = {command.guard.pid for command in commands} | {command.pid for command in commands}
        for pid in guard.children():
            if pid not in known:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)

    def _end(self) -> None:
        for command in (self._command, self._hook):
            if command is not None:
                command.kill("the launcher ends")
        if self._command is not None:
            # The slot must not be free while the command lives.
            with contextlib.suppress(Exception):
                self._command.guard.wait(5.0)
        leave = self._state.leave
        if leave is not None and self._reporter is not None:
            self._acknowledge()
            self._reporter.flush(0.2)
        # A lease that cannot be revoked because etcd is away ends by itself; a trainer has to be out in time.
        stopping = threading.Thread(target=self._client.shutdown, name="edl-launcher-shutdown", daemon=True)
        stopping.start()
        hurry = leave is not None and self._rules.role == "trainer"
        stopping.join(max(0.3, leave.until - time.monotonic()) if hurry and leave is not None else None)
        if self._control is not None:
            self._control.close()
        if self._pservers_file:
            with contextlib.suppress(OSError):
                os.unlink(self._pservers_file)
        self._inbox.close()
