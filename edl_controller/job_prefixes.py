"""The prefixes of jobs in an etcd that many of them share: which there are, and what is below one, deleted."""

from __future__ import annotations

from edl_agent.clock import Clock
from edl_agent.errors import ConfigurationError
from edl_agent.etcd import kv as parts
from edl_agent.etcd import wire
from edl_agent.keys import KeySchema, prefix_end
from edl_controller.agent_store import DEADLINE, Store

JOBS = "/edl/jobs/"
"""Below it are the prefixes of all jobs that share an etcd (`edl_controller.core.names.etcd_prefix`)."""


def job_keys(prefix: str) -> KeySchema:
    """Return the keys of the one job whose prefix this is.

    Raises:
        ConfigurationError: it is not the prefix of one job below `JOBS`: more than one job's keys would be below it.
    """
    keys = KeySchema(prefix)
    if not prefix.startswith(JOBS) or prefix.count("/") != 5:
        raise ConfigurationError(f"{prefix!r} is not the prefix of one job: {JOBS}<namespace>/<name>/<uid>")
    return keys


def delete_keys(store: Store, keys: KeySchema, deadline: float) -> None:
    """Delete all keys of a job.

    Args:
        store: where.
        keys: of the job.
        deadline: on the monotonic clock.

    Raises:
        EdlAgentError: etcd did not do it.
    """
    start = keys.full("/")
    store.kv.txn([], [parts.delete_op(start, prefix_end(start))], [], deadline)


def list_prefixes(store: Store, clock: Clock) -> tuple[str, ...]:
    """Return the prefixes of all jobs that have keys here, by one call for each, of up to `DEADLINE` seconds.

    Raises:
        EdlAgentError: etcd did not answer.
    """
    found: list[str] = []
    start, end = JOBS.encode(), prefix_end(JOBS.encode())
    while True:
        request = wire.RangeRequest(key=start, range_end=end, limit=1, keys_only=True)
        pairs = store.connection.call(wire.RANGE, request, clock.monotonic() + DEADLINE).kvs
        if not pairs:
            return tuple(found)
        first = pairs[0].key
        of_job = b"/".join(first.split(b"/")[:6])
        found.append(of_job.decode(errors="replace"))
        start = prefix_end(of_job + b"/") if of_job != first else first + b"\0"
