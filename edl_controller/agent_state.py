"""Reads what the agents of each job say in its etcd, with its age, and writes what the controller asks of them.

Each job is read again and again by a bounded number of threads, over one connection for each set of endpoints. A store
that does not answer costs its own jobs their freshness and nobody else anything: one call takes at most `DEADLINE`, a
failing store is asked ever more rarely and by one thread only, and it never has all threads.

Nothing here decides. What is written (drain requests, ``/ps_desired``) is asked for by the caller, queued and repeated
until it is done; that it is done shows in the state that is read after it.
"""

from __future__ import annotations

import heapq
import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from edl_agent import errors
from edl_agent.clock import Clock, SystemClock
from edl_agent.drain_request import DrainRequest
from edl_agent.etcd import kv as parts
from edl_agent.etcd import wire
from edl_agent.etcd.connection import Connection
from edl_agent.etcd.endpoints import parse_endpoints
from edl_agent.etcd.identity import Login, TlsFiles
from edl_agent.etcd.kv import KeyValue, Kv
from edl_agent.keys import KeySchema, SlotFamily, parse_desired, prefix_end
from edl_agent.report import Report
from edl_agent.tasks.encoding import TaskKeys, decode_state
from edl_controller.core.agents import NEVER_SEEN, AgentState, Slot

_log = logging.getLogger(__name__)

DEADLINE = 2.0
"""Seconds that one call may take."""

INTERVAL = 1.0
"""Seconds between two looks at a job, where there are few."""

READS_PER_SECOND = 200
"""Of all jobs together; with more of them each is read more rarely."""

LONGEST_PAUSE = 10.0
"""Seconds after which a store that does not answer is asked again, at most."""

JOBS = "/edl/jobs/"
"""Below it are the prefixes of all jobs that share an etcd (`edl_controller.core.names.etcd_prefix`)."""

_OUTAGES = (errors.Unavailable, errors.DeadlineExceeded, errors.UnknownOutcome, errors.AuthenticationFailed)
"""Faults of the store, not of one job's keys."""

Callback = Callable[[str, AgentState], object]


@dataclass(frozen=True)
class EtcdAccess:
    """An etcd, and who we are to it. Equal ones share a connection."""

    endpoints: tuple[str, ...]
    tls: TlsFiles | None = None
    login: Login | None = None


class _Store:
    """One etcd and how it is doing."""

    def __init__(self, access: EtcdAccess, clock: Clock) -> None:
        self.access = access
        self.users = 0
        self.busy = 0
        self.failures = 0
        self.next_try = 0.0
        self.connection = Connection(
            parse_endpoints(access.endpoints, tls=access.tls is not None),
            tls=access.tls,
            login=access.login,
            dial_timeout=DEADLINE,
            clock=clock,
        )
        self.kv = Kv(self.connection)

    def may_be_asked(self, most: int, now: float) -> bool:
        return self.busy < (1 if self.failures else most) and now >= self.next_try

    def answered(self) -> None:
        self.failures, self.next_try = 0, 0.0

    def failed(self, now: float) -> None:
        self.failures += 1
        self.next_try = now + min(LONGEST_PAUSE, 0.5 * 2 ** min(self.failures, 10))


@dataclass
class _Watched:
    """One job."""

    key: str
    keys: KeySchema
    store: _Store
    state: AgentState = NEVER_SEEN
    drains: dict[str, DrainRequest | None] = field(default_factory=dict)
    desired: int | None = None
    reading: bool = False
    gone: bool = False
    plan: int = 0


class AgentStates:
    """The agents' state of all jobs, by key. Thread-safe. No call waits for a store, but `sweep` and `prefixes`.

    Args:
        workers: threads that read; at least 2.
        interval: seconds between two looks at a job.
        clock: for ages (its wall clock) and deadlines.
    """

    def __init__(self, *, workers: int = 4, interval: float = INTERVAL, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._interval = interval
        self._most_per_store = max(1, workers - 1)
        self._changed = threading.Condition()
        self._jobs: dict[str, _Watched] = {}
        self._stores: dict[EtcdAccess, _Store] = {}
        self._due: list[tuple[float, int, _Watched]] = []
        self._numbers = 0
        self._callbacks: list[Callback] = []
        self._closed = False
        self._threads = [
            threading.Thread(target=self._work, name=f"edl-agent-state-{number}", daemon=True)
            for number in range(max(2, workers))
        ]
        for thread in self._threads:
            thread.start()

    # --- which jobs ---

    def watch(self, job: str, access: EtcdAccess, prefix: str) -> None:
        """Read a job's keys from now on. The same again changes nothing; another place begins anew.

        Raises:
            ConfigurationError: bad endpoints or prefix.
        """
        keys = KeySchema(prefix)
        with self._changed:
            known = self._jobs.get(job)
            if known is not None and (known.keys, known.store.access) == (keys, access):
                return
            self._drop(known)
            store = self._stores.get(access)
            if store is None:
                store = self._stores[access] = _Store(access, self._clock)
            store.users += 1
            watched = self._jobs[job] = _Watched(job, keys, store)
            self._plan(watched, 0.0)

    def forget(self, job: str) -> None:
        """Read a job's keys no more."""
        with self._changed:
            self._drop(self._jobs.pop(job, None))

    def get(self, job: str) -> AgentState:
        """Return what was read last; `NEVER_SEEN` where nothing was. Look at its age."""
        with self._changed:
            watched = self._jobs.get(job)
            return NEVER_SEEN if watched is None else watched.state

    def refresh(self, job: str) -> None:
        """Read a job's keys as soon as a thread is free."""
        with self._changed:
            if (watched := self._jobs.get(job)) is not None:
                self._plan(watched, 0.0)

    def on_change(self, callback: Callback) -> None:
        """Call ``callback(job, state)`` whenever a state differs in more than its age, from a reading thread.

        It must not block; what it raises is logged.
        """
        with self._changed:
            self._callbacks.append(callback)

    # --- what is asked for ---

    def request_drain(self, job: str, name: str, request: DrainRequest) -> None:
        """Ask an agent to drain. Written soon; done when ``name`` is in the state's ``drains``."""
        self._want(job, lambda watched: watched.drains.update({name: request}))

    def withdraw_drain(self, job: str, name: str) -> None:
        """Take the request back, or remove it after its end. Done when ``name`` is no longer in ``drains``."""
        self._want(job, lambda watched: watched.drains.update({name: None}))

    def repair_desired(self, job: str, count: int) -> None:
        """See to it that ``/ps_desired`` is ``count``: written only if it still is what was read just before."""

        def want(watched: _Watched) -> None:
            watched.desired = count

        self._want(job, want)

    def sweep(self, access: EtcdAccess, prefix: str) -> None:
        """Delete all keys of a vanished job. Takes up to `DEADLINE` seconds.

        Raises:
            ConfigurationError: the prefix is not that of one job below `JOBS`.
            EdlAgentError: etcd did not do it.
        """
        keys = KeySchema(prefix)
        if not prefix.startswith(JOBS) or prefix.count("/") != 5:
            raise errors.ConfigurationError(f"{prefix!r} is not the prefix of one job: {JOBS}<namespace>/<name>/<uid>")
        start = keys.full("/")

        def delete(store: _Store) -> None:
            operation = parts.delete_op(start, prefix_end(start))
            store.kv.txn([], [operation], [], self._clock.monotonic() + DEADLINE)

        self._borrow(access, delete)

    def prefixes(self, access: EtcdAccess) -> tuple[str, ...]:
        """Return the prefixes of all jobs that have keys in this etcd. Takes one call for each of them.

        Raises:
            EdlAgentError: etcd did not answer.
        """
        found: list[str] = []

        def look(store: _Store) -> None:
            start, end = JOBS.encode(), prefix_end(JOBS.encode())
            while True:
                request = wire.RangeRequest(key=start, range_end=end, limit=1, keys_only=True)
                pairs = store.connection.call(wire.RANGE, request, self._clock.monotonic() + DEADLINE).kvs
                if not pairs:
                    return
                first = pairs[0].key
                of_job = b"/".join(first.split(b"/")[:6])
                found.append(of_job.decode(errors="replace"))
                start = prefix_end(of_job + b"/") if of_job != first else first + b"\0"

        self._borrow(access, look)
        return tuple(found)

    def close(self, timeout: float = 5.0) -> None:
        """End all reading. Idempotent."""
        with self._changed:
            self._closed = True
            stores = [*self._stores.values()]
            self._changed.notify_all()
        for store in stores:
            store.connection.close()
        for thread in self._threads:
            thread.join(timeout)

    # --- inside ---

    def _borrow(self, access: EtcdAccess, use: Callable[[_Store], None]) -> None:
        with self._changed:
            store = self._stores.get(access)
        if store is not None:
            use(store)
            return
        own = _Store(access, self._clock)
        try:
            use(own)
        finally:
            own.connection.close()

    def _drop(self, watched: _Watched | None) -> None:
        if watched is None:
            return
        watched.gone = True
        watched.store.users -= 1
        if not watched.store.users:
            del self._stores[watched.store.access]
            watched.store.connection.close()

    def _want(self, job: str, want: Callable[[_Watched], None]) -> None:
        with self._changed:
            if (watched := self._jobs.get(job)) is not None:
                want(watched)
                self._plan(watched, 0.0)

    def _plan(self, watched: _Watched, delay: float) -> None:
        self._numbers += 1
        watched.plan = self._numbers  # an earlier plan is void
        heapq.heappush(self._due, (self._clock.monotonic() + delay, self._numbers, watched))
        self._changed.notify()

    def _work(self) -> None:
        while (watched := self._next()) is not None:
            self._look(watched)

    def _next(self) -> _Watched | None:
        with self._changed:
            while not self._closed:
                now = self._clock.monotonic()
                later: list[tuple[float, int, _Watched]] = []
                chosen = None
                while self._due and self._due[0][0] <= now and chosen is None:
                    _, number, watched = heapq.heappop(self._due)
                    if watched.gone or watched.plan != number:
                        continue
                    if watched.reading or not watched.store.may_be_asked(self._most_per_store, now):
                        later.append((max(now + 0.02, watched.store.next_try), number, watched))
                        continue
                    chosen = watched
                for one in later:
                    heapq.heappush(self._due, one)
                if chosen is not None:
                    chosen.reading = True
                    chosen.store.busy += 1
                    return chosen
                self._changed.wait(self._due[0][0] - now if self._due else None)
            return None

    def _look(self, watched: _Watched) -> None:
        with self._changed:
            before, drains, desired = watched.state, dict(watched.drains), watched.desired
        try:
            deadline = self._clock.monotonic() + DEADLINE
            self._write_drains(watched, drains, deadline)
            if desired is not None:
                self._write_desired(watched, desired, deadline)
            asked = self._clock.wall()
            state = read_state(watched.store.kv, watched.keys, deadline)
            cluster_id = watched.store.connection.choice.cluster_id or 0
            after = replace(state, observed=asked, cluster_id=cluster_id)
            outage = False
        except errors.EdlAgentError as error:
            after = replace(before, error=str(error) or type(error).__name__)
            outage = isinstance(error, _OUTAGES)
        with self._changed:
            changed = self._looked(watched, after, outage, drains, desired)
            callbacks = [*self._callbacks]
        for one in changed:
            for callback in callbacks:
                try:
                    callback(one.key, one.state)
                except Exception:
                    _log.exception("A callback for the agents' state of %s raised", one.key)

    def _looked(
        self,
        watched: _Watched,
        after: AgentState,
        outage: bool,
        drains: dict[str, DrainRequest | None],
        desired: int | None,
    ) -> list[_Watched]:
        """Take in what a look has brought, plan the next. Returns the jobs whose state differs by it."""
        store, now = watched.store, self._clock.monotonic()
        watched.reading = False
        store.busy -= 1
        if outage:
            store.failed(now)
        else:
            store.answered()
        if not after.error:
            watched.drains = {
                name: request for name, request in watched.drains.items() if drains.get(name, ...) is not request
            }
            watched.desired = None if watched.desired == desired else watched.desired
        if watched.gone or self._closed:
            return []
        self._plan(watched, max(self._interval, len(self._jobs) / READS_PER_SECOND))
        # What keeps one job of a store from being read keeps all of them; each is not tried just to say so.
        mates = [one for one in self._jobs.values() if one.store is store] if outage else [watched]
        changed = []
        for one in mates:
            new = after if one is watched else replace(one.state, error=after.error)
            if new.error != one.state.error or not _same(new, one.state):
                changed.append(one)
            one.state = new
        return changed

    def _write_drains(self, watched: _Watched, drains: dict[str, DrainRequest | None], deadline: float) -> None:
        for name, request in drains.items():
            key = watched.keys.full(f"/edl/drain/{name}")
            if request is None:
                watched.store.kv.delete(key, deadline)
            else:
                watched.store.kv.put(key, request.encode(), deadline)

    def _write_desired(self, watched: _Watched, count: int, deadline: float) -> None:
        kv, key = watched.store.kv, watched.keys.full("/ps_desired")
        value = str(count).encode()
        pairs, _ = kv.range(key, b"", deadline)
        if pairs and pairs[0].value == value:
            return
        compare = parts.modified_at(key, pairs[0].mod_revision) if pairs else parts.absent(key)
        if kv.txn([compare], [parts.put_op(key, value)], [], deadline).succeeded:
            _log.info("Set /ps_desired of %s from %r to %d", watched.key, pairs[0].value if pairs else None, count)


def read_state(kv: Kv, keys: KeySchema, deadline: float) -> AgentState:
    """Read all that a job's agents say, at one revision.

    What is not understood is passed over: one bad value must not hide all others.

    Raises:
        EdlAgentError: etcd did not answer by ``deadline`` (on the monotonic clock).
    """
    tasks = TaskKeys(keys)
    reports, drains = keys.full("/edl/agents/"), keys.full("/edl/drain/")
    result = kv.txn(
        [],
        [
            parts.range_op(keys.pservers.prefix, keys.pservers.board_end),
            parts.range_op(keys.trainers.prefix, keys.trainers.end),
            parts.range_op(reports, prefix_end(reports)),
            parts.range_op(drains, prefix_end(drains)),
            parts.range_op(tasks.state),
        ],
        [],
        deadline,
    )
    board, trainers, told, asked, state = result.ranges
    passes, finished = _passes(state)
    requests = {pair.key[len(drains) :].decode(errors="replace"): DrainRequest.decode(pair.value) for pair in asked}
    return AgentState(
        desired=_desired(board, keys.full("/ps_desired")),
        pservers=_slots(keys.pservers, board),
        trainers=_slots(keys.trainers, trainers),
        reports=tuple(report for pair in told if (report := Report.decode(pair.value)) is not None),
        drains=frozenset(requests),
        drain_requests=tuple((name, request) for name, request in sorted(requests.items()) if request is not None),
        passes=passes,
        passes_finished=finished,
    )


def _slots(family: SlotFamily, pairs: Iterable[KeyValue]) -> tuple[Slot, ...]:
    found = [(family.index(pair.key), pair) for pair in pairs]
    return tuple(
        sorted(
            (
                Slot(index, pair.value.decode(errors="replace"), pair.mod_revision, pair.lease)
                for index, pair in found
                if index is not None
            ),
            key=lambda slot: slot.index,
        )
    )


def _desired(pairs: Iterable[KeyValue], key: bytes) -> int | None:
    for pair in pairs:
        if pair.key == key:
            try:
                return parse_desired(pair.value)
            except errors.InvalidDesiredCount:
                return None
    return None


def _passes(pairs: tuple[KeyValue, ...]) -> tuple[int, int]:
    if not pairs:
        return 0, 0
    try:
        state = decode_state(pairs[0].value)
    except errors.ProtocolError:
        return 0, 0
    return state.end - state.first, state.current - state.first


def _same(a: AgentState, b: AgentState) -> bool:
    """Whether two states differ in their age only."""
    return replace(a, observed=None, reports=()) == replace(b, observed=None, reports=()) and (
        len(a.reports) == len(b.reports)
        and all(one.same_news(other) for one, other in zip(a.reports, b.reports, strict=True))
    )
