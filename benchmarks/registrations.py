"""A thousand registrations at once through the product's claim code, and 200 real processes released together."""

import random
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

from benchmarks.ground import Child, at_once, children, etcd_in_memory, raw_calls, say
from benchmarks.table import Row, ratio, value
from edl_agent.claiming import Claims, Held
from edl_agent.clock import SystemClock
from edl_agent.etcd import kv, wire
from edl_agent.etcd.connection import Connection
from edl_agent.etcd.endpoints import parse_endpoints
from edl_agent.etcd.kv import Kv
from edl_agent.etcd.lease import Leases
from edl_agent.keys import KeySchema
from edl_agent.slots import Claimant

CLAIMS, PROCESSES = "registrations", "processes"
CHANNELS = 4
_prefixes = count(1)


def _connect(url: str) -> Connection:
    made = Connection(parse_endpoints(url, tls=False), tls=None, login=None, dial_timeout=60.0, clock=SystemClock())
    Kv(made).get(b"/warm", time.monotonic() + 10.0)
    return made


def run_claims(quick: bool) -> Iterator[Row]:
    """Wall time and requests of N registrations at once; their growth with N."""
    sizes, rounds = ((20, 40), 1) if quick else ((250, 500, 1000), 5)
    with etcd_in_memory() as etcd:
        connections = [_connect(etcd.client_url) for _ in range(CHANNELS)]
        try:
            per_registration: dict[int, tuple[float, float]] = {}
            for size in sizes:
                raws, ours, calls, most = [], [], [], 0
                for number in range(rounds):
                    say(f"{size} registrations at once, round {number + 1} of {rounds}")
                    raws.append(_raw(connections, size))
                    seconds, made, methods = _ours(connections, size)
                    ours.append(seconds)
                    calls.append(sum(made) / size)
                    most = max(most, max(made))
                baseline, subject = statistics.median(raws), statistics.median(ours)
                per_registration[size] = (baseline / size, subject / size)
                each = statistics.mean(calls)
                text = ", ".join(f"{number / size:.2f} {path.rsplit('/', 1)[1]}" for path, number in methods.items())
                note = f"median of {rounds}, alternating; {CHANNELS} channels, {size} threads"
                what = f"{size} registrations at once"
                yield ratio(CLAIMS, what, "s", baseline, subject, must=3.0, moonshot=1.25, note=note)
                note = f"mean; most {most}; {text}"
                yield value(CLAIMS, f"{what}: requests each", "", each, baseline=2.0, must=5.0, moonshot=3.0, note=note)
            small, large = per_registration[sizes[0]], per_registration[sizes[-1]]
            yield ratio(
                CLAIMS,
                f"growth: time each at {sizes[-1]} over time each at {sizes[0]}",
                "",
                large[0] / small[0],
                large[1] / small[1],
                must=1.3,
                note="1 = linear; that many threads cost the baseline, too; 1.3 = linear within the noise",
            )
            for what, options in (
                ("that must create /ps_desired too", {"set_count": False}),
                ("that are not told the count", {"told": False}),
            ):
                seconds, made, _ = _ours(connections, sizes[-1], **options)
                note = f"{sum(made) / sizes[-1]:.2f} requests each; one round"
                yield value(CLAIMS, f"{sizes[-1]} at once {what}", "s", seconds, baseline=baseline, note=note)
        finally:
            for connection in connections:
                connection.close()


def _raw(connections: list[Connection], size: int) -> float:
    """Lease grant and one create with a known index, each as ready bytes; the answer's outcome is looked at."""
    prefix = f"/raw{next(_prefixes)}"
    grants = [raw_calls(connection, wire.LEASE_GRANT, 60.0) for connection in connections]
    txns = [raw_calls(connection, wire.TXN, 60.0) for connection in connections]

    def work(index: int, lease_id: int) -> Callable[[], None]:
        key = f"{prefix}/ps/{index}".encode()
        grant = wire.LeaseGrantRequest(id=lease_id, ttl=60).SerializeToString()
        put = kv.put_op(key, _address(index), lease_id)
        create = wire.TxnRequest(compare=[kv.absent(key)], success=[put]).SerializeToString()
        send_grant, send_txn = grants[index % CHANNELS], txns[index % CHANNELS]

        def both() -> None:
            send_grant(grant)
            assert wire.TXN.answer.FromString(send_txn(create)).succeeded

        return both

    return at_once([work(index, random.randrange(1, 2**62)) for index in range(size)])


def _ours(
    connections: list[Connection], size: int, *, set_count: bool = True, told: bool = True
) -> tuple[float, list[int], Counter[str]]:
    """Seconds, requests of each registration, and requests by method."""
    keys = KeySchema(f"/ours{next(_prefixes)}")
    store = Kv(connections[0])
    desired = keys.pservers.desired
    assert desired is not None
    if set_count:
        store.put(desired, str(size).encode(), time.monotonic() + 10.0)
    clock = SystemClock()
    made = [0] * size
    held: list[Held | None] = [None] * size
    methods: Counter[str] = Counter()
    counted: list[_Counted] = [_Counted(connections[number % CHANNELS]) for number in range(size)]

    def work(number: int) -> Callable[[], None]:
        connection: Any = counted[number]
        leases, claims = Leases(connection), Claims(Kv(connection), keys.pservers, clock, 60.0)
        chance = random.Random(number)
        draw = [chance.random() for _ in range(8)]
        lease_id = random.randrange(1, 2**62)
        me = Claimant(_address(number), num_pservers=size if told else None, own_leases=frozenset((lease_id,)))

        def both() -> None:
            leases.grant(lease_id, 60.0, clock.monotonic() + 60.0)
            outcome = claims.attempt(lease_id, me, draw)
            assert isinstance(outcome, Held), outcome
            held[number] = outcome

        return both

    seconds = at_once([work(number) for number in range(size)])
    for number, one in enumerate(counted):
        made[number] = len(one.calls)
        methods.update(one.calls)
    _check(store, keys, size, held)
    return seconds, made, methods


class _Counted:
    """A shared connection as one registration sees it, with its requests counted."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.calls: list[str] = []

    def call(self, method: wire.Method, request: Any, deadline: float) -> Any:
        self.calls.append(method.path)
        return self._connection.call(method, request, deadline)

    def send(self, method: wire.Method, payload: bytes, deadline: float) -> bytes:
        self.calls.append(method.path)
        return self._connection.send(method, payload, deadline)


def _address(number: int) -> bytes:
    return f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}:7164".encode()


def _check(store: Kv, keys: KeySchema, size: int, held: list[Held | None]) -> None:
    """Dense, unique, and everybody holds what it was told. Raises AssertionError."""
    pairs, _ = store.range(keys.pservers.prefix, keys.pservers.end, time.monotonic() + 10.0)
    stored = {keys.pservers.index(pair.key): pair for pair in pairs}
    assert set(stored) == set(range(size)), "not dense"
    for number, one in enumerate(held):
        assert one is not None
        pair = stored[one.index]
        assert (pair.value, pair.mod_revision) == (_address(number), one.epoch), "told an index that it does not hold"


def run_processes(quick: bool) -> Iterator[Row]:
    """Real processes, released together after their imports; the clock runs from the release to the last one."""
    size = 6 if quick else 200
    with etcd_in_memory() as etcd:
        prefix = f"/processes{next(_prefixes)}"
        say(f"starting {size} processes")
        made: list[Child] = []
        # In groups, so that the imports do not all fight for the cores.
        for begin in range(0, size, 10):
            group = [
                Child("starter", etcd.client_url, prefix, str(index), str(size))
                for index in range(begin, min(begin + 10, size))
            ]
            made += group
            for child in group:
                child.hear()
        with children(*made):
            say("releasing them: raw")
            start = time.monotonic()
            for child in made:
                child.tell()
            raw = max(float(child.hear()) for child in made) - start
            say("releasing them: the product")
            start = time.monotonic()
            for child in made:
                child.tell()
            answers = [child.hear().split() for child in made]
            ours = max(float(answer[0]) for answer in answers) - start
            indices = sorted(int(answer[1]) for answer in answers)
            assert indices == list(range(size)), f"not dense and unique: {indices}"
        note = "release to the last one, dense and unique; raw = connect, grant, create with a known index"
        yield ratio(PROCESSES, f"{size} processes released together, all registered", "s", raw, ours, note=note)
