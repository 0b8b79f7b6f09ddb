"""The program's life as the sidecar sees it: one kept-open stream, and the session that lives exactly as long.

Process ids and pid files mean nothing across containers; an open connection does: the kernel closes it when the program
dies, and gRPC's pings find out when it hangs.
"""

import contextlib
import logging
import secrets
import threading
from collections.abc import Callable

from edl_agent import errors
from edl_agent.client import EtcdClient
from edl_agent.drain import Drain
from edl_agent.keys import Role
from edl_agent.reporting import INTERVAL, Reporter
from edl_agent.session import SessionView
from edl_agent.sidecar.feed import Feed
from edl_agent.sidecar.statuses import Refusal
from edl_agent.tasks import Task, TaskQueue

_log = logging.getLogger(__name__)

MakeClient = Callable[[int | None, str | None], EtcdClient]
"""``make(num_pservers, host)``: a new client for one program's session."""

MOST_WORKERS = 16
"""Task queues of one program."""

_HANDOVER = 5.0
"""Seconds that a new program waits for the release of the one before."""

_NOTICE = 0.5
"""Seconds for the end of a stream to be noticed, when a program is quickly back."""


class Worker:
    """One task queue of the program and the task in hand. Calls of one worker come one after the other."""

    def __init__(self, queue: TaskQueue) -> None:
        self.queue = queue
        self.lock = threading.Lock()
        self._task: Task | None = None
        self._id = ""
        self._finished: str | None = None

    @property
    def in_hand(self) -> tuple[str, Task] | None:
        """Its id and the task that was taken last and not let go."""
        return None if self._task is None else (self._id, self._task)

    def hold(self, task: Task) -> str:
        """Note a task that was taken; returns its id."""
        self._task, self._id = task, secrets.token_hex(8)
        return self._id

    def let_go(self, done: bool = False) -> None:
        """The task is no longer in hand."""
        self._finished = self._id if done else None
        self._task = None

    def was_finished(self, task_id: str) -> bool:
        """Whether this is the task that was finished last: to say so twice is no error."""
        return self._task is None and self._finished == task_id

    def task(self, task_id: str) -> Task:
        """The task in hand.

        Raises:
            TaskLost: another one, or none, is in hand.
        """
        if self._task is None or task_id != self._id:
            raise errors.TaskLost("this task is not in hand: it was let go, or taken by an earlier program")
        return self._task


class Program:
    """One attached program: its attachment, and from `register` on its session.

    Attributes:
        attachment: what its calls carry.
        text: for people.
        ended: set when its stream has ended.
        role: as registered.
    """

    def __init__(self, text: str, make_client: MakeClient, drain: Drain, news: Feed, interval: float) -> None:
        self.attachment = secrets.token_hex(16)
        self.text = text
        self.ended = threading.Event()
        self.released = threading.Event()
        self.role: Role | None = None
        self.registered = False
        self._make_client = make_client
        self._drain = drain
        self._news = news
        self._interval = interval
        self._lock = threading.Lock()
        self._register_lock = threading.Lock()
        self._client: EtcdClient | None = None
        self._reporter: Reporter | None = None
        self._workers: dict[str, Worker] = {}
        self._loss: errors.LeaseLost | None = None
        self._asked: object = None

    @property
    def client(self) -> EtcdClient:
        """The session's client.

        Raises:
            Refusal: not registered.
        """
        client = self._client
        if client is None or not self.registered:
            raise Refusal("NOT_REGISTERED", "call Register first")
        return client

    @property
    def view(self) -> SessionView:
        """The session now."""
        client = self._client
        return SessionView() if client is None else client.session.view()

    @property
    def reporter(self) -> Reporter:
        """Made by `register`. Raises Refusal before."""
        _ = self.client
        assert self._reporter is not None
        return self._reporter

    def register(
        self,
        role: Role | None,
        port: int,
        host: str,
        num_pservers: int | None,
        wait: bool,
        timeout: float,
    ) -> None:
        """Open the session and claim the slot, until it is held. The same again waits for the same.

        Args:
            role: ``None`` = a session without a slot.
            port: of a pserver.
            host: to register; empty = default.
            num_pservers: creates ``/ps_desired``.
            wait: for a free slot.
            timeout: seconds.

        Raises:
            EdlAgentError: as `EtcdClient.register`.
            ConfigurationError: registered as something else already.
        """
        asked = (role, port, host, num_pservers)
        with self._register_lock:
            with self._lock:
                if self.ended.is_set():
                    raise Refusal("NOT_ATTACHED", "the program's stream has ended")
                if self._client is not None and self._asked != asked:
                    if self.registered:
                        raise errors.ConfigurationError("registered with another role, port, host or count already")
                    stale, self._client = self._client, None
                else:
                    stale = None
            if stale is not None:
                stale.shutdown()
            client = self._client or self._begin(role, host, num_pservers)
            self._asked = asked
            if role is None:
                client.open(timeout=timeout)
            elif role == "trainer":
                client.register_trainer(host or self._drain.name, timeout=timeout)
            else:
                client.register(port, host=host or None, timeout=timeout, wait=wait)
            self.role = role
            with self._lock:
                if self._reporter is None and not self.ended.is_set():
                    self._reporter = Reporter(client, role=role or "", name=self._drain.name, interval=self._interval)
                    self.drain_changed()
                    self.registered = True
        self._news.tell()

    def give_up_registering(self) -> None:
        """The call was cancelled: claim nothing in the name of one who no longer waits."""
        with self._lock:
            if self.registered or self._client is None:
                return
            client, self._client = self._client, None
        client.shutdown()

    def worker(self, name: str) -> Worker:
        """The program's worker of this name, made when it is new.

        Raises:
            Refusal: not registered, or too many.
        """
        client = self.client
        with self._lock:
            found = self._workers.get(name)
            if found is None:
                if len(self._workers) >= MOST_WORKERS:
                    raise Refusal("TOO_MANY_CALLS", f"a program may have {MOST_WORKERS} workers")
                found = self._workers[name] = Worker(TaskQueue(client, self._drain.name))
            return found

    def drain_changed(self) -> None:
        """Reports carry the drain state, which is watched by the sidecar's own client."""
        client = self._client
        if client is not None:
            client._set_drain_state(self._drain.state)

    def end(self) -> None:
        """The stream ended: release the slot, bounded. Idempotent; waits for a release under way."""
        with self._lock:
            first, client = not self.ended.is_set(), self._client
            self.ended.set()
        if not first:
            self.released.wait(_HANDOVER)
            return
        try:
            if client is not None:
                client.shutdown()
        finally:
            self.released.set()
            self._news.tell()

    def _begin(self, role: Role | None, host: str, num_pservers: int | None) -> EtcdClient:
        client = self._make_client(num_pservers, host if role == "pserver" and host else None)
        client.session.listen(self._news.tell)
        with self._lock:
            if not self.ended.is_set():
                self._client = client
                return client
        client.shutdown()
        raise Refusal("NOT_ATTACHED", "the program's stream has ended")


class Life:
    """Who is attached. At most one program at a time."""

    def __init__(self, make_client: MakeClient, drain: Drain, news: Feed, interval: float = INTERVAL) -> None:
        self._make_client = make_client
        self._drain = drain
        self._news = news
        self._interval = interval
        self._lock = threading.Lock()
        self._program: Program | None = None
        self._closed = False

    @property
    def program(self) -> Program | None:
        """The attached program."""
        program = self._program
        return program if program is not None and not program.ended.is_set() else None

    def attach(self, text: str) -> Program:
        """Begin a life, after the one before has been released.

        Raises:
            Refusal: another program is attached.
            ClientClosed: the sidecar ends.
        """
        before = self._program
        if before is not None:
            before.ended.wait(_NOTICE)
            if before.ended.is_set():
                before.released.wait(_HANDOVER)
        with self._lock:
            if self._closed:
                raise errors.ClientClosed("the sidecar ends")
            if self.program is not None:
                raise Refusal("ALREADY_ATTACHED", "another program is attached; its stream must end first")
            program = Program(text, self._make_client, self._drain, self._news, self._interval)
            self._program = program
        _log.info("A program attached%s", f": {text!r}" if text else "")
        self._news.tell()
        return program

    def stream_ended(self, program: Program) -> None:
        """From gRPC's own threads: release on another one."""
        if not program.ended.is_set():
            _log.info("The program's stream ended; its slot is released")
        threading.Thread(target=program.end, name="edl-sidecar-release", daemon=True).start()

    def attached(self, attachment: str) -> Program:
        """The program that these calls come from.

        Raises:
            Refusal: it is not the attached one.
        """
        program = self.program
        if program is None or not secrets.compare_digest(program.attachment.encode(), attachment.encode()):
            raise Refusal(
                "NOT_ATTACHED",
                "the attachment is over: another program has attached since" if attachment else "call Attach first",
            )
        return program

    def drain_changed(self) -> None:
        """Pass it on to the program's reports."""
        program = self.program
        if program is not None:
            program.drain_changed()

    def close(self) -> None:
        """Release the attached program's slot."""
        with self._lock:
            self._closed = True
            program = self._program
        if program is not None:
            with contextlib.suppress(errors.EdlAgentError):
                program.end()
