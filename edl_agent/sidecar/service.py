"""`AgentService`: session, keys, pservers, report and drain; the tasks are in `task_service`."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from edl_agent import ANY, EtcdClient, errors
from edl_agent.drain import Drain
from edl_agent.keys import Role
from edl_agent.membership import Members, Membership
from edl_agent.sidecar import answers, wire
from edl_agent.sidecar.calls import LONGEST, Call, Places
from edl_agent.sidecar.feed import Feed
from edl_agent.sidecar.key_rules import check_readable, check_writable
from edl_agent.sidecar.life import Life, Program
from edl_agent.sidecar.task_service import TaskService

_ROLES: dict[int, Role | None] = {
    answers.ROLES["pserver"]: "pserver",
    answers.ROLES["trainer"]: "trainer",
    answers.ROLES["session_only"]: None,
}


class AgentService(TaskService):
    """One method for each RPC of the description, by its name in snake case.

    Args:
        client: the sidecar's own, without a session.
        life: who is attached.
        membership: of the job.
        drain: of this pod.
        news: of session, membership and drain.
        places: for what waits.
        stop: ends the sidecar.
    """

    def __init__(
        self,
        client: EtcdClient,
        life: Life,
        membership: Membership,
        drain: Drain,
        news: Feed,
        places: Places,
        stop: Callable[[], None],
    ) -> None:
        super().__init__(client, life, places)
        self._membership = membership
        self._drain = drain
        self._news = news
        self._stop = stop
        self._wall = client._clock.wall
        self._prefix = client._settings.keys.prefix

    # --- session ---

    def attach(self, request: Any, call: Call) -> Iterator[Any]:
        """The stream that is the program's sign of life."""
        program = self._life.attach(request.program)
        call.on_end(lambda: self._life.stream_ended(program))
        answer = wire.message("AttachResponse")
        for _ in self._follow(call, lambda: not program.ended.is_set()):
            yield answer(attachment=program.attachment, session=self._session(program))

    def register(self, request: Any, call: Call) -> Any:
        """See `Program.register`."""
        program = self._life.attached(request.attachment)
        if request.role not in _ROLES:
            raise errors.ConfigurationError("role must be ROLE_PSERVER, ROLE_TRAINER or ROLE_SESSION_ONLY")
        call.on_end(lambda: self._abandon(program))
        with self._places.one():
            program.register(
                _ROLES[request.role],
                request.port,
                request.host,
                request.num_pservers if request.HasField("num_pservers") else None,
                not request.no_wait,
                call.seconds(LONGEST),
            )
        return wire.message("RegisterResponse")(session=self._session(program))

    def shutdown(self, request: Any, call: Call) -> Any:
        """Release the slot; the attachment is over."""
        self._life.attached(request.attachment).end()
        if request.stop_sidecar:
            call.on_end(self._stop)
        return wire.message("ShutdownResponse")()

    def get_session(self, request: Any, call: Call) -> Any:
        """From memory."""
        return wire.message("GetSessionResponse")(session=self._session(self._life.program))

    def watch_session(self, request: Any, call: Call) -> Iterator[Any]:
        """At each change."""
        answer = wire.message("WatchSessionResponse")
        for _ in self._follow(call):
            yield answer(session=self._session(self._life.program))

    # --- keys ---

    def get(self, request: Any, call: Call) -> Any:
        """Read through to etcd."""
        value = self._client.get_key(check_readable(request.key, self._prefix), call.seconds())
        return wire.message("GetResponse")(found=value is not None, value=value or b"")

    def put(self, request: Any, call: Call) -> Any:
        """Write through to etcd, by the program's session where it is bound to it."""
        program = self._life.attached(request.attachment)
        slot = program.view.slot
        epoch = request.epoch if request.HasField("epoch") else None
        held = slot.index if slot is not None and slot.role == "pserver" else None
        key = check_writable(request.key, self._prefix, held, epoch)
        if request.expect_absent and request.HasField("expected"):
            raise errors.ConfigurationError("expected and expect_absent exclude each other")
        if epoch is None and not request.with_lease:
            client = self._client
        else:
            client = program.client
        expected = None if request.expect_absent else request.expected if request.HasField("expected") else ANY
        if expected is ANY and epoch is None:
            client.put_key(key, request.value, call.seconds(), request.with_lease)
            written = True
        else:
            written = client.compare_and_set(
                key,
                request.value,
                expected=expected,
                guarded=epoch is not None,
                epoch=epoch,
                with_lease=request.with_lease,
                timeout=call.seconds(),
            )
        return wire.message("PutResponse")(written=written)

    # --- pservers ---

    def get_pservers(self, request: Any, call: Call) -> Any:
        """From memory, or when complete."""
        members: Members
        if request.wait_complete:
            with self._places.one():
                members = self._wait_complete(call)
        else:
            members = self._membership.members(request.max_age if request.HasField("max_age") else None)
        return wire.message("GetPserversResponse")(pservers=answers.pservers(members))

    def watch_pservers(self, request: Any, call: Call) -> Iterator[Any]:
        """At each change of the view."""
        answer = wire.message("WatchPserversResponse")
        told: object = None
        for _ in self._follow(call):
            members = self._members_now()
            if members is None or (request.only_complete and not members.complete):
                continue
            view = (members.pservers, members.desired, members.complete)
            if view != told:
                told = view
                yield answer(pservers=answers.pservers(members))

    # --- report and drain ---

    def report(self, request: Any, call: Call) -> Any:
        """Note the numbers."""
        reporter = self._life.attached(request.attachment).reporter
        names = ("step", "samples", "busy", "queue", "checkpoint_age")
        reporter.update(**{name: getattr(request, name) for name in names if request.HasField(name)})
        return wire.message("ReportResponse")()

    def start_drain(self, request: Any, call: Call) -> Any:
        """From a preStop hook or the program itself."""
        self._drain.start(request.reason, request.seconds)
        return wire.message("StartDrainResponse")(drain=answers.drain(self._drain))

    def acknowledge_drain(self, request: Any, call: Call) -> Any:
        """The program's answer."""
        self._life.attached(request.attachment)
        return wire.message("AcknowledgeDrainResponse")(asked=self._drain.acknowledge())

    def watch_drain(self, request: Any, call: Call) -> Iterator[Any]:
        """At each change."""
        answer = wire.message("WatchDrainResponse")
        told: object = None
        for _ in self._follow(call):
            attached = self._life.program is not None
            news = (self._drain.state, self._drain.reason, self._drain.decision, attached)
            if news != told:
                told = news
                yield answer(drain=answers.drain(self._drain), attached=attached)

    # --- inside ---

    def _session(self, program: Program | None) -> Any:
        return answers.session(program, self._drain.name, self._wall())

    def _follow(self, call: Call, goes_on: Callable[[], bool] = lambda: True) -> Iterator[None]:
        """Once now and once for each change, until the call ends."""
        call.on_end(self._news.tell)
        seen = self._news.version
        while call.alive and goes_on():
            yield
            seen = self._news.wait(seen)

    def _members_now(self) -> Members | None:
        with contextlib.suppress(errors.Unavailable):
            return self._membership._now()
        return None

    def _wait_complete(self, call: Call) -> Members:
        end = self._client._clock.monotonic() + call.seconds(LONGEST)
        while True:
            left = end - self._client._clock.monotonic()
            try:
                return self._membership.wait_complete(max(0.0, min(1.0, left)))
            except errors.DeadlineExceeded:
                if left <= 1.0 or not call.alive:
                    raise

    def _abandon(self, program: Program) -> None:
        if not program.registered:
            self._in_background(program.give_up_registering)
