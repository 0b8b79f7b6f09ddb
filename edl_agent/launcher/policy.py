"""PURE: what the launcher does next. (what is known, the rules, now) -> start, stop, kill, wait or exit.

`decide` is asked after everything that happens, and sees everything at once, so nothing depends on the order of events.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from edl_agent.keys import Role

SIGHUP, SIGINT, SIGQUIT, SIGABRT, SIGFPE, SIGKILL, SIGUSR1, SIGSEGV, SIGUSR2, SIGTERM = 1, 2, 3, 6, 8, 9, 10, 11, 12, 15

EXIT_LOST = 4
"""As of ``edl-agent register``: the slot was lost, or taken over by a newer process with the same address."""

EXIT_TIMEOUT = 3
"""As of ``edl-agent register``: what the command needs did not come in time."""

_NAMES = {128 + SIGFPE: "floating point exception", 128 + SIGSEGV: "segmentation fault", 128 + SIGABRT: "abort"}
"""What the original's start script names in the termination log."""

_SIGNALS = {SIGHUP: "SIGHUP", SIGINT: "SIGINT", SIGQUIT: "SIGQUIT", SIGKILL: "SIGKILL", SIGTERM: "SIGTERM"}

_STEADY = 10.0
"""A run that lasted this many times the longest back-off forgets the failures before it."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended.

    Attributes:
        code: exit code; 128 + n for signal n.
        why: what the guard or the launcher knows of it; empty when it ended by itself.
        fenced: whether the guard killed it.
    """

    code: int
    why: str = ""
    fenced: bool = False

    @classmethod
    def of(cls, code: int, why: str = "", *, fenced: bool = False) -> "Ended":
        """Of Python's form, where ``-n`` is signal n."""
        return cls(code if code >= 0 else 128 - code, why, fenced)

    @property
    def text(self) -> str:
        """For people."""
        return describe(self.code) + (f": {self.why}" if self.why else "")


def describe(code: int) -> str:
    """An exit code in words; 136, 139, 134 and 1 named as in the original."""
    if code == 0:
        return "done"
    if code == 1:
        return "general error (exit code 1)"
    if code in _NAMES:
        return f"{_NAMES[code]} (exit code {code})"
    if 128 < code < 128 + 65:
        return f"ended by {_SIGNALS.get(code - 128, f'signal {code - 128}')} (exit code {code})"
    return f"exit code {code}"


@dataclass(frozen=True, slots=True)
class Rules:
    """What the user has asked for. Times in seconds.

    Attributes:
        role: whose slot.
        restart: of a command that ended by itself: ``never``, ``on-failure`` (another code than 0), ``always``.
        max_restarts: in a row; ``None`` = no limit.
        backoff: before the first restart, doubled for each further one.
        longest_backoff: at most this.
        on_loss: after the slot was lost: ``restart`` (claim one again, start anew) or ``exit`` (with 4).
        on_pserver_change: ``restart``, ``signal`` or ``ignore``.
        needs_pservers: whether the command is started only with a complete list of pservers.
        zero_first: whether trainers other than 0 wait until trainer 0 runs.
        stop_grace: between SIGTERM and SIGKILL.
        checkpoint: whether there is something to run before a pserver is stopped.
        linger: whether a trainer drained by a request in etcd stays, not ready, until it is removed.
        start_timeout: until the first start; ``None`` = for ever.
    """

    role: Role
    restart: Literal["never", "on-failure", "always"] = "never"
    max_restarts: int | None = 10
    backoff: float = 1.0
    longest_backoff: float = 60.0
    on_loss: Literal["restart", "exit"] = "restart"
    on_pserver_change: Literal["restart", "signal", "ignore"] = "restart"
    needs_pservers: bool = True
    zero_first: bool = False
    stop_grace: float = 1.5
    checkpoint: bool = False
    linger: bool = True
    start_timeout: float | None = None


@dataclass(frozen=True, slots=True)
class Held:
    """A slot: index, epoch and lease."""

    index: int
    epoch: int
    lease: int


@dataclass(frozen=True, slots=True)
class Peer:
    """A pserver as it is in etcd."""

    index: int
    address: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Pservers:
    """The pservers known now; ``complete``: each index below ``desired`` is held."""

    held: tuple[Peer, ...] = ()
    desired: int | None = None
    complete: bool = False

    @property
    def addresses(self) -> tuple[str, ...]:
        """``ip:port`` by index. Only of a complete list."""
        return tuple(peer.address for peer in self.held) if self.complete else ()


@dataclass(frozen=True, slots=True)
class Leave:
    """The launcher is to end.

    Attributes:
        why: for people.
        signal: the signal that asked for it, and that is given to the command.
        until: when it has to be over.
        requested: by a request in etcd (it may be withdrawn), not on this machine.
    """

    why: str
    signal: int
    until: float
    requested: bool = False


Stage = Literal["running", "checkpointing", "checkpointed", "stopping", "killed"]


@dataclass(frozen=True, slots=True)
class Running:
    """The command that runs now.

    Attributes:
        slot: under which it was started.
        pservers: that it was told.
        stage: how far its end has come.
        until: when the stage is over.
    """

    slot: Held
    pservers: Pservers
    stage: Stage = "running"
    until: float = float("inf")


Cause = Literal["itself", "lost", "change", "leave"]
"""Why a command ended: by itself, because the slot was lost, because the pservers changed, because we leave."""


@dataclass(frozen=True, slots=True)
class Situation:
    """All that is known at one moment.

    Attributes:
        slot: held now.
        pservers: known now.
        zero_runs: whether trainer 0 runs with these very pservers.
        leave: set when the launcher is to end.
        command: that runs.
        ended: the last command's end, if none runs, and its cause.
        failures: ends in a row that were followed by a restart.
        not_before: earliest next start.
        started: whether the command was ever started.
        began: when the launcher was started.
        fatal: why no slot will ever be held, with an exit code.
    """

    slot: Held | None = None
    pservers: Pservers = Pservers()
    zero_runs: bool = False
    leave: Leave | None = None
    command: Running | None = None
    ended: tuple[Ended, Cause] | None = None
    failures: int = 0
    not_before: float = 0.0
    started: bool = False
    began: float = 0.0
    fatal: tuple[int, str] | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """For an event, or until ``until``. ``what``: for people."""

    what: str
    until: float = float("inf")


@dataclass(frozen=True, slots=True)
class Start:
    """Start the command with the slot and the pservers of the situation."""


@dataclass(frozen=True, slots=True)
class Retry:
    """The command's end is answered with a restart after ``delay`` seconds."""

    delay: float
    failures: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Run the checkpoint hook, at most until ``until``."""

    until: float


@dataclass(frozen=True, slots=True)
class Stop:
    """Send ``signal`` to the command, which may take until ``until``."""

    cause: Cause
    why: str
    signal: int
    until: float


@dataclass(frozen=True, slots=True)
class Kill:
    """SIGKILL the command now."""

    cause: Cause
    why: str


@dataclass(frozen=True, slots=True)
class Notify:
    """Tell the running command of the new pservers by a signal."""


@dataclass(frozen=True, slots=True)
class Linger:
    """Drained: acknowledge, stay without a command until ``until`` or until the request is withdrawn."""

    until: float


@dataclass(frozen=True, slots=True)
class Exit:
    """End the launcher."""

    code: int
    why: str


Action = Wait | Start | Retry | Checkpoint | Stop | Kill | Notify | Linger | Exit


def decide(now_known: Situation, rules: Rules, now: float) -> Action:
    """The next action; asked again after it was carried out, until it is `Wait`, `Linger` or `Exit`."""
    if now_known.command is not None:
        return _with_command(now_known, now_known.command, rules, now)
    return _without_command(now_known, rules, now)


def _with_command(known: Situation, command: Running, rules: Rules, now: float) -> Action:
    if command.stage == "killed":
        return Wait("the command's end")
    if known.slot != command.slot:
        return Kill("lost", "the slot was lost")
    if command.stage == "stopping":
        if now >= command.until:
            return Kill("leave" if known.leave else "change", "the command did not end in time")
        return Wait("the command to end", command.until)
    if known.leave is not None:
        return _leaving(known.leave, command, rules, now)
    changed = pservers_changed(command.pservers, known.pservers)
    if changed and rules.on_pserver_change == "restart":
        return Stop("change", changed, SIGTERM, now + rules.stop_grace)
    if changed and rules.on_pserver_change == "signal" and known.pservers.complete:
        return Notify()
    return Wait("the command")


def _leaving(leave: Leave, command: Running, rules: Rules, now: float) -> Action:
    # A pserver's checkpoint gets all of the time but the grace.
    last_call = leave.until - rules.stop_grace
    if rules.role == "pserver" and rules.checkpoint:
        if command.stage == "running" and now < last_call:
            return Checkpoint(last_call)
        if command.stage == "checkpointing" and now < last_call:
            return Wait("the checkpoint", last_call)
    grace = max(now, leave.until) if rules.role == "pserver" else min(now + rules.stop_grace, max(now, leave.until))
    return Stop("leave", leave.why, leave.signal, grace)


def _without_command(known: Situation, rules: Rules, now: float) -> Action:
    if known.ended is not None:
        ended, cause = known.ended
        if cause == "itself" and (known.leave is None or ended.code == 0):
            verdict = _after_end(ended, known.failures, rules)
            if isinstance(verdict, Exit) or known.leave is None:
                return verdict
        if cause == "lost" and rules.on_loss == "exit" and known.leave is None:
            return Exit(EXIT_LOST, f"the slot was lost ({ended.text})")
    if known.leave is not None:
        if known.leave.requested and rules.linger and rules.role == "trainer" and now < known.leave.until:
            return Linger(known.leave.until)
        return Exit(_code_of_leaving(known, known.leave, rules), known.leave.why)
    if known.fatal is not None:
        return Exit(*known.fatal)
    waits = _missing(known, rules)
    if waits is None and now >= known.not_before:
        return Start()
    what = waits or "the pause before a restart"
    end = float("inf")
    if rules.start_timeout is not None and not known.started:
        end = known.began + rules.start_timeout
        if now >= end:
            return Exit(EXIT_TIMEOUT, f"not started within {rules.start_timeout:g} s, waiting for {what}")
    return Wait(what, end if waits else min(end, known.not_before))


def _missing(known: Situation, rules: Rules) -> str | None:
    if known.slot is None:
        return f"a {rules.role} slot"
    if rules.needs_pservers and not known.pservers.complete:
        return "the pservers to be complete"
    if rules.zero_first and rules.role == "trainer" and known.slot.index != 0 and not known.zero_runs:
        return "trainer 0 to run"
    return None


def _after_end(ended: Ended, failures: int, rules: Rules) -> Exit | Retry:
    again = rules.restart == "always" or (rules.restart == "on-failure" and ended.code != 0)
    if not again:
        return Exit(ended.code, ended.text)
    if rules.max_restarts is not None and failures >= rules.max_restarts:
        return Exit(ended.code, f"{ended.text}; given up after {failures} restarts")
    return Retry(min(rules.longest_backoff, rules.backoff * 2 ** min(failures, 30)), failures + 1)


def _code_of_leaving(known: Situation, leave: Leave, rules: Rules) -> int:
    if rules.role == "trainer":
        # A trainer that is stopped has work left, whatever its command makes of the signal: a Job must not take it for
        # complete.
        return 128 + leave.signal
    return known.ended[0].code if known.ended is not None and known.ended[1] == "leave" else 0


def failures_after(failures: int, lasted: float, rules: Rules) -> int:
    """The failures in a row, after a run of ``lasted`` seconds: a long one clears them."""
    return 0 if lasted >= _STEADY * rules.longest_backoff else failures


def pservers_changed(told: Pservers, present: Pservers) -> str:
    """What makes the list that the command was told wrong; empty where nothing does.

    A pserver that is gone or has another epoch: at once, since a trainer would hang in a call to it or train on its
    empty successor. A new one (the count was raised): when the list is complete again.
    """
    if not told.complete:
        return ""
    by_index = {peer.index: peer for peer in present.held}
    for peer in told.held:
        found = by_index.get(peer.index)
        if found is None:
            return f"pserver {peer.index} (epoch {peer.epoch}) is gone"
        if found != peer:
            return f"pserver {peer.index} was started anew (epoch {peer.epoch} -> {found.epoch})"
    if present.complete and len(present.held) != len(told.held):
        return f"there are {len(present.held)} pservers now, {len(told.held)} before"
    return ""


def as_pservers(held: Iterable[tuple[int, str, int]], desired: int | None, complete: bool) -> Pservers:
    """From (index, address, epoch)."""
    return Pservers(tuple(Peer(*one) for one in held), desired, complete)
