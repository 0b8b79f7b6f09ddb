"""Reads what the agents of each job say in its etcd, with its age, and writes what the controller asks of them.

Each job is read again and again by a bounded number of threads, over one connection for each set of endpoints. While
nothing at all changes in a store its jobs are not read one by one: one look at its revision says that what is known of
each of them still holds. A store that does not answer costs its own jobs their freshness and nobody else anything: one
call takes at most `DEADLINE`, a failing store is asked ever more rarely and by one thread only, and it never has all
threads.

Nothing here decides. What is written (drain requests, ``/ps_desired``) is asked for by the caller, queued and repeated
until it is done; that it is done shows in the state that is read after it.
"""

from __future__ import annotations

import heapq
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar

from edl_agent import errors
from edl_agent.clock import Clock, SystemClock
from edl_agent.drain_request import DrainRequest
from edl_agent.etcd import kv as parts
from edl_agent.keys import KeySchema
from edl_controller.agent_reading import read_state
from edl_controller.agent_store import DEADLINE, EtcdAccess, Store
from edl_controller.core.agents import NEVER_SEEN, AgentState
from edl_controller.job_prefixes import delete_keys, job_keys, list_prefixes

_log = logging.getLogger(__name__)

INTERVAL = 1.0
"""Seconds between two looks at a job, where there are few, and at a store; twice that where a look brought no news."""

READS_PER_SECOND = 200
"""Of all jobs together; with more of them each is read more rarely."""

_OUTAGES = (errors.Unavailable, errors.DeadlineExceeded, errors.UnknownOutcome, errors.AuthenticationFailed)
"""Faults of the store, not of one job's keys."""

Callback = Callable[[str, AgentState], object]
T = TypeVar("T")


@dataclass
class _Watched:
    """One job. ``version``: of its store when the job was read; ``resting``: it is read when its store changes."""

    key: str
    keys: KeySchema
    store: Store
    state: AgentState = NEVER_SEEN
    version: tuple[int, int] = (0, 0)
    resting: bool = False
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
        may_write: asked before each write; where it says no, nothing is written and what is asked for stays.
    """

    def __init__(
        self,
        *,
        workers: int = 4,
        interval: float = INTERVAL,
        clock: Clock | None = None,
        may_write: Callable[[], bool] = lambda: True,
    ) -> None:
        self._clock, self._may_write = clock or SystemClock(), may_write
        self._interval = interval
        self._most_per_store = max(1, workers - 1)
        self._changed = threading.Condition()
        self._jobs: dict[str, _Watched] = {}
        self._stores: dict[EtcdAccess, Store] = {}
        self._due: list[tuple[float, int, _Watched | Store]] = []
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
                store = self._stores[access] = Store(access, self._clock)
                self._plan(store, self._interval)
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
            return NEVER_SEEN if watched is None else _up_to_date(watched)

    def all(self) -> dict[str, AgentState]:
        """Return what was read last of every job that is read."""
        with self._changed:
            return {key: _up_to_date(watched) for key, watched in self._jobs.items()}

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
            ConfigurationError: the prefix is not that of one job below `job_prefixes.JOBS`.
            EdlAgentError: etcd did not do it.
        """
        keys = job_keys(prefix)
        if self._may_write():
            self._borrow(access, lambda store: delete_keys(store, keys, self._clock.monotonic() + DEADLINE))

    def prefixes(self, access: EtcdAccess) -> tuple[str, ...]:
        """Return the prefixes of all jobs that have keys in this etcd. Takes one call for each of them.

        Raises:
            EdlAgentError: etcd did not answer.
        """
        return self._borrow(access, lambda store: list_prefixes(store, self._clock))

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

    def _borrow(self, access: EtcdAccess, use: Callable[[Store], T]) -> T:
        with self._changed:
            store = self._stores.get(access)
        if store is not None:
            return use(store)
        own = Store(access, self._clock)
        try:
            return use(own)
        finally:
            own.connection.close()

    def _drop(self, watched: _Watched | None) -> None:
        if watched is None:
            return
        watched.gone = True
        watched.store.users -= 1
        if not watched.store.users:
            watched.store.gone = True
            del self._stores[watched.store.access]
            watched.store.connection.close()

    def _want(self, job: str, want: Callable[[_Watched], None]) -> None:
        with self._changed:
            if (watched := self._jobs.get(job)) is not None:
                want(watched)
                self._plan(watched, 0.0)

    def _plan(self, what: _Watched | Store, delay: float) -> None:
        self._numbers += 1
        what.plan = self._numbers  # an earlier plan is void
        if isinstance(what, _Watched):
            what.resting = False
        heapq.heappush(self._due, (self._clock.monotonic() + delay, self._numbers, what))
        self._changed.notify()

    def _work(self) -> None:
        while (chosen := self._next()) is not None:
            if isinstance(chosen, Store):
                self._look_at_store(chosen)
            else:
                self._look(chosen)

    def _next(self) -> _Watched | Store | None:
        with self._changed:
            while not self._closed:
                now = self._clock.monotonic()
                later: list[tuple[float, int, _Watched | Store]] = []
                chosen = None
                while self._due and self._due[0][0] <= now and chosen is None:
                    _, number, what = heapq.heappop(self._due)
                    if what.gone or what.plan != number:
                        continue
                    store, reading = (what, False) if isinstance(what, Store) else (what.store, what.reading)
                    if reading or not store.may_be_asked(self._most_per_store, now):
                        later.append((max(now + 0.02, store.next_try), number, what))
                        continue
                    chosen = what
                for one in later:
                    heapq.heappush(self._due, one)
                if chosen is not None:
                    chosen.plan = 0
                    if isinstance(chosen, _Watched):
                        chosen.reading = True
                    (chosen if isinstance(chosen, Store) else chosen.store).busy += 1
                    return chosen
                self._changed.wait(self._due[0][0] - now if self._due else None)
            return None

    def _look_at_store(self, store: Store) -> None:
        """See whether anything has changed in a store whose jobs rest, and have them read if so."""
        with self._changed:
            key = next((one.keys.full("/ps_desired") for one in self._jobs.values() if one.store is store), b"")
        asked, error, version = self._clock.wall(), "", store.version
        outage = False
        try:
            version = store.look(key, self._clock.monotonic() + DEADLINE)
        except Exception as failure:
            error, outage = _told(store, failure), isinstance(failure, _OUTAGES)
        with self._changed:
            store.busy -= 1
            if store.gone or self._closed:
                return
            unchanged = not error and version == store.version
            self._plan(store, (2 if unchanged else 1) * self._interval)
            self._answered(store, error if outage else "")
            mates = [one for one in self._jobs.values() if one.store is store]
            changed = self._failed_together(mates, error) if outage else []
            if unchanged:
                store.looked = asked
            else:
                store.version = version
                awake = [one for one in mates if one.resting]
                for number, one in enumerate(awake):
                    self._plan(one, number / READS_PER_SECOND)
        self._tell(changed)

    def _look(self, watched: _Watched) -> None:
        with self._changed:
            before, drains, desired = watched.state, dict(watched.drains), watched.desired
        if (drains or desired is not None) and not self._may_write():
            drains, desired = {}, None
        version = (0, 0)
        try:
            deadline = self._clock.monotonic() + DEADLINE
            self._write_drains(watched, drains, deadline)
            if desired is not None:
                self._write_desired(watched, desired, deadline)
            asked = self._clock.wall()
            state, revision = read_state(watched.store.kv, watched.keys, deadline)
            version = (watched.store.connection.choice.cluster_id or 0, revision)
            after = replace(state, observed=asked, cluster_id=version[0])
            outage = False
        except Exception as error:
            after, outage = replace(before, error=_told(watched.store, error)), isinstance(error, _OUTAGES)
        with self._changed:
            changed = self._looked(watched, after, version, outage, drains, desired)
        self._tell(changed)

    def _tell(self, changed: list[_Watched]) -> None:
        with self._changed:
            callbacks = [*self._callbacks]
        for one in changed:
            for callback in callbacks:
                try:
                    callback(one.key, one.state)
                except Exception:
                    _log.exception("A callback for the agents' state of %s raised", one.key)

    def _answered(self, store: Store, outage: str) -> None:
        if outage:
            store.failed(self._clock.monotonic(), outage)
        else:
            store.answered()

    def _looked(
        self,
        watched: _Watched,
        after: AgentState,
        version: tuple[int, int],
        outage: bool,
        drains: dict[str, DrainRequest | None],
        desired: int | None,
    ) -> list[_Watched]:
        """Take in what a look has brought, plan the next. Returns the jobs whose state differs by it."""
        store = watched.store
        watched.reading = False
        store.busy -= 1
        self._answered(store, after.error if outage else "")
        if not after.error:
            watched.drains = {
                name: request for name, request in watched.drains.items() if drains.get(name, ...) is not request
            }
            watched.desired = None if watched.desired == desired else watched.desired
        if watched.gone or self._closed:
            return []
        watched.version = version
        self._plan_next(watched, after)
        # What keeps one job of a store from being read keeps all of them; each is not tried just to say so.
        if outage:
            return self._failed_together([one for one in self._jobs.values() if one.store is store], after.error)
        changed = after.error != watched.state.error or not _same(after, watched.state)
        watched.state = after
        return [watched] if changed else []

    def _plan_next(self, watched: _Watched, after: AgentState) -> None:
        """Let it rest until its store changes, where it can. What was planned during the look (`refresh`) stays."""
        if watched.plan:
            return
        waits = watched.drains or watched.desired is not None or after.error
        if not waits and watched.version == watched.store.version:
            watched.resting = True
        else:
            self._plan(watched, max(self._interval, len(self._jobs) / READS_PER_SECOND))

    def _failed_together(self, mates: list[_Watched], error: str) -> list[_Watched]:
        changed = [one for one in mates if one.state.error != error]
        for one in changed:
            one.state = replace(_up_to_date(one), error=error)
            if one.resting:
                self._plan(one, self._interval)
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


def _told(store: Store, failure: Exception) -> str:
    """Return why a look failed. The thread goes on whatever it was: without it jobs would silently be read no more."""
    why = str(failure) or type(failure).__name__
    if not isinstance(failure, errors.EdlAgentError) and store.unexpected != why:
        store.unexpected = why  # one traceback, not one for each look
        _log.error("Reading the etcd %s failed unexpectedly", ",".join(store.access.endpoints), exc_info=failure)
    return why


def _up_to_date(watched: _Watched) -> AgentState:
    """Return its state, as old as the last time that it was known to hold."""
    state, looked = watched.state, watched.store.looked
    if not watched.resting or looked is None or state.observed is None or state.observed >= looked:
        return state
    return replace(state, observed=looked)


def _same(a: AgentState, b: AgentState) -> bool:
    """Whether two states differ in their age only."""
    return replace(a, observed=None, reports=()) == replace(b, observed=None, reports=()) and (
        len(a.reports) == len(b.reports)
        and all(one.same_news(other) for one, other in zip(a.reports, b.reports, strict=True))
    )
