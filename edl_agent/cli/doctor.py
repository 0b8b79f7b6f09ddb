"""``edl-agent doctor``: one look at everything that a registration needs; every problem with what to do next."""

import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Literal

import click

from edl_agent import errors
from edl_agent.claiming import Claims
from edl_agent.cli.certificate_expiry import expiry_of_file, expiry_of_server
from edl_agent.cli.failures import ABSENT, OK, advice_for
from edl_agent.cli.options import Common, connect, shared_options
from edl_agent.cli.output import check_stdout, paint, print_json, printable, say
from edl_agent.cli.slots import free_slots, wanted
from edl_agent.clock import Clock
from edl_agent.config import Settings
from edl_agent.etcd import kv as kv_parts
from edl_agent.etcd.connection import Connection
from edl_agent.etcd.endpoints import Endpoint
from edl_agent.etcd.kv import Kv
from edl_agent.etcd.lease import Leases
from edl_agent.etcd.maintenance import MemberStatus, alarms, ever_compacted, member_status
from edl_agent.slots import Board

_DAYS_WARNING = 14

_SLOW = 0.1
"""Seconds for one answer on an open connection: etcd's own advice is to stay far below its heartbeat of 0.1 s."""

_MANY_REVISIONS = 10_000
"""A store with so many revisions and its first one still there is not compacted by anybody."""


@dataclass(frozen=True)
class Finding:
    """One line of the report. ``next`` says what to do; empty for what is in order."""

    check: str
    status: Literal["ok", "note", "warning", "problem"]
    text: str
    next: str = ""


@dataclass(frozen=True)
class _Scene:
    """What the checks work with."""

    settings: Settings
    seconds: float
    connection: Connection
    clock: Clock

    @property
    def deadline(self) -> float:
        return self.clock.monotonic() + self.seconds


@click.command()
@shared_options()
def doctor(common: Common) -> int:
    """Check etcd, the login, TLS, leases and the job's slots; say what to do about each problem.

    Writes nothing but one lease, which it revokes. Exits with 0 where all is well (warnings included), else with 1.
    JSON: {"healthy": ..., "checks": [{"check", "status", "text", "next"}], "members": [...]}. --timeout is for each
    check.
    """
    check_stdout()
    settings = common.settings()
    connection, clock = connect(settings)
    scene = _Scene(settings, common.seconds, connection, clock)
    findings: list[Finding] = []
    members: list[MemberStatus] = []

    def add(found: Iterator[Finding]) -> None:
        for finding in found:
            findings.append(finding)
            if not common.json:
                _show(finding)

    try:
        answers = _ask_all(scene)
        members += [answer for answer in answers.values() if isinstance(answer, MemberStatus)]
        add(_check_members(answers, settings))
        add(_check_tls(scene))
        if any(not isinstance(answer, errors.Unavailable | errors.DeadlineExceeded) for answer in answers.values()):
            for check in (_check_job, _check_rights, _check_lease, _check_alarms, _check_compaction):
                add(_guarded(check, scene))
    finally:
        connection.close()
    healthy = all(finding.status != "problem" for finding in findings)
    if common.json:
        print_json(
            {
                "healthy": healthy,
                "checks": [asdict(finding) for finding in findings],
                "members": [_member_json(member) for member in members],
            }
        )
    else:
        problems = sum(finding.status == "problem" for finding in findings)
        say(paint("healthy", fg="green") if healthy else paint(f"{problems} problem(s)", fg="red", bold=True))
    return OK if healthy else ABSENT


def _show(finding: Finding) -> None:
    colour = {"ok": "green", "note": "blue", "warning": "yellow", "problem": "red"}[finding.status]
    say(f"{paint(f'{finding.status:<8}', fg=colour)} {finding.check:<11} {finding.text}")
    if finding.next:
        say(f"{'':<20} -> {finding.next}")


def _guarded(check: Callable[[_Scene], Iterator[Finding]], scene: _Scene) -> Iterator[Finding]:
    """The findings of a check; an error that ends it is one of them."""
    try:
        yield from check(scene)
    except errors.EdlAgentError as error:
        name = check.__name__.removeprefix("_check_")
        yield Finding(name, "problem", str(error), advice_for(error))


# --- members ---


def _ask_all(scene: _Scene) -> dict[Endpoint, MemberStatus | errors.EdlAgentError]:
    def ask(endpoint: Endpoint) -> MemberStatus | errors.EdlAgentError:
        try:
            return member_status(endpoint, tls=scene.settings.tls, timeout=scene.seconds, clock=scene.clock)
        except errors.EdlAgentError as error:
            return error

    endpoints = scene.settings.endpoints
    with ThreadPoolExecutor(len(endpoints), "edl-cli-doctor") as pool:
        return dict(zip(endpoints, pool.map(ask, endpoints), strict=True))


def _check_members(
    answers: dict[Endpoint, MemberStatus | errors.EdlAgentError], settings: Settings
) -> Iterator[Finding]:
    good = [answer for answer in answers.values() if isinstance(answer, MemberStatus)]
    for endpoint, answer in answers.items():
        yield (
            _judge_member(answer) if isinstance(answer, MemberStatus) else _judge_silence(endpoint, answer, bool(good))
        )
    clusters = {member.cluster_id for member in good}
    if len(clusters) > 1:
        names = ", ".join(f"{member.endpoint} in {member.cluster_id:x}" for member in good)
        yield Finding(
            "cluster",
            "problem",
            f"the endpoints belong to different clusters: {names}",
            "name members of one cluster only: with two clusters an index has two holders",
        )
    elif clusters:
        yield Finding("cluster", "ok", f"cluster id {clusters.pop():x}")
    leaders = {member.leader for member in good if member.leader}
    if len(leaders) > 1 and len(clusters) == 1:
        yield Finding("cluster", "warning", "the members name different leaders", "an election is under way: ask again")
    if len({member.version for member in good}) > 1:
        versions = ", ".join(sorted({member.version for member in good}))
        yield Finding("cluster", "note", f"members of different versions: {versions} (fine during an upgrade)")
    if len(settings.endpoints) == 1:
        yield Finding("cluster", "note", "one endpoint only: the agents depend on that member; name all of them")


def _judge_member(member: MemberStatus) -> Finding:
    text = (
        f"{member.endpoint}: etcd {member.version}, "
        + ("leader" if member.leader == member.member_id else f"follower of {member.leader:x}")
        + f", {member.seconds * 1000:.1f} ms (connect {member.dial_seconds * 1000:.1f} ms)"
        + f", {member.db_size / 2**20:.1f} MiB"
    )
    if not member.leader:
        return Finding(
            "endpoint",
            "problem",
            f"{member.endpoint}: etcd {member.version} answers, but knows no leader",
            "start more members, or mend the network between them: a majority must see each other",
        )
    if member.is_learner:
        return Finding(
            "endpoint", "warning", text + ", a learner", "learners serve no clients: `etcdctl member promote`"
        )
    if member.errors:
        return Finding("endpoint", "problem", f"{text}; reports: {'; '.join(member.errors)}", "see `alarms` below")
    if member.seconds > _SLOW:
        return Finding(
            "endpoint", "warning", text, "slow: keep the --ttl at ten times this and more; look at etcd's disk and CPU"
        )
    return Finding("endpoint", "ok", text)


def _judge_silence(endpoint: Endpoint, error: errors.EdlAgentError, others: bool) -> Finding:
    if isinstance(error, errors.Unavailable | errors.DeadlineExceeded):
        return Finding(
            "endpoint",
            "problem",
            f"{endpoint}: not reached: {error}",
            "start this member, or take it out of --endpoints; agents go on with the others"
            if others
            else "is etcd running there? check --endpoints, name look-up, firewalls (port 2379), http or https",
        )
    if isinstance(error, errors.AuthenticationFailed) and "andshake" not in str(error):
        return Finding("endpoint", "note", f"{endpoint}: answers, but shows its status to no stranger")
    return Finding("endpoint", "problem", f"{endpoint}: {error}", advice_for(error))


# --- TLS ---


def _check_tls(scene: _Scene) -> Iterator[Finding]:
    settings, now = scene.settings, datetime.now(UTC)
    if not settings.endpoints[0].tls:
        yield Finding("tls", "note", "off: keys and values travel readable (http)")
        return
    tls = settings.tls
    for what, path in (("CA file", tls.ca), ("client certificate", tls.cert)) if tls else ():
        if path is None:
            continue
        try:
            yield _judge_expiry(f"{what} {path}", expiry_of_file(path), now)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            yield Finding("tls", "problem", f"{what} {path}: {reason}", "name a readable PEM file")
    for endpoint in settings.endpoints:
        try:
            end = expiry_of_server(
                endpoint.host, endpoint.port, tls.cert if tls else None, tls.key if tls else None, scene.seconds
            )
        except (OSError, ValueError):
            continue  # said above already, as far as it matters
        yield _judge_expiry(f"server certificate of {endpoint}", end, now)


def _judge_expiry(what: str, end: datetime, now: datetime) -> Finding:
    days = (end - now).total_seconds() / 86_400
    if days <= 0:
        return Finding(
            "tls", "problem", f"{what} expired on {end:%Y-%m-%d}", "renew it: agents read replaced files by themselves"
        )
    if days < _DAYS_WARNING:
        return Finding("tls", "warning", f"{what} ends in {days:.0f} days ({end:%Y-%m-%d})", "renew it now")
    return Finding("tls", "ok", f"{what} is good for {days:.0f} days")


# --- the job ---


def _check_job(scene: _Scene) -> Iterator[Finding]:
    keys = scene.settings.keys
    board = Claims(Kv(scene.connection), keys.pservers, scene.clock, scene.seconds).look()
    login = scene.settings.login
    yield Finding("auth", "ok", f"user {login.user!r} is accepted" if login else "no user given, and none asked for")
    number, problem = wanted(board)
    if board.desired is None:
        yield Finding(
            "desired",
            "warning",
            f"{problem}" + (f" below {keys.prefix}" if keys.prefix else ""),
            "the first `register --num-pservers N` creates it; without that flag pservers wait; right --prefix?",
        )
    elif number is None:
        yield Finding("desired", "problem", problem, "put a number: `edl-agent put /ps_desired N`")
    else:
        yield Finding("desired", "ok", f"{number} pservers are wanted")
    yield from _judge_slots(board, number)


def _judge_slots(board: Board, number: int | None) -> Iterator[Finding]:
    free = free_slots(board, number)
    text = f"{len(board.slots)} held, {len(free)} free"
    if free and board.slots:
        text += f" ({', '.join(map(str, free[:10]))}{', ...' if len(free) > 10 else ''})"
    if number is not None and not free:
        yield Finding(
            "slots", "note", text + ": a further pserver waits", "raise /ps_desired if more should work at once"
        )
    else:
        yield Finding("slots", "ok", text)
    for slot in board.slots:
        if not slot.lease:
            yield Finding(
                "slots",
                "problem",
                f"slot {slot.index} ({printable(slot.address)}) has no lease and never expires",
                f"make sure that nobody serves it, then `edl-agent delete /ps/{slot.index}`",
            )
        elif number is not None and slot.index >= number:
            yield Finding(
                "slots",
                "warning",
                f"slot {slot.index} ({printable(slot.address)}) is held above the desired count {number}",
                "its holder should release it by itself; if it stays, it is no agent of this kind",
            )
    addresses = [slot.address for slot in board.slots]
    for address in sorted({address for address in addresses if addresses.count(address) > 1}):
        yield Finding(
            "slots",
            "problem",
            f"{printable(address)} is on {addresses.count(address)} slots",
            "an address holds one slot: find out who wrote the others",
        )


def _check_rights(scene: _Scene) -> Iterator[Finding]:
    """A transaction that can never hold: etcd checks the rights to its writes and the space, and writes nothing."""
    keys = scene.settings.keys
    never = [kv_parts.absent(keys.full("/ps_desired")), kv_parts.modified_at(keys.full("/ps_desired"), 2**62)]
    writes = [kv_parts.put_op(keys.full("/ps_desired"), b"1"), kv_parts.put_op(keys.pservers.key(0), b"-")]
    Kv(scene.connection).txn(never, writes, [], scene.deadline)
    yield Finding("rights", "ok", f"may read and write the job's keys{f' below {keys.prefix}' if keys.prefix else ''}")


def _check_lease(scene: _Scene) -> Iterator[Finding]:
    leases, asked = Leases(scene.connection), scene.settings.ttl
    lease = random.randrange(1, 2**62)
    granted = leases.grant(lease, asked, scene.deadline)
    try:
        begin = scene.clock.monotonic()
        time.sleep(1.1)  # etcd tells whole seconds: long enough to see its clock go
        left, _ = leases.time_to_live(lease, scene.deadline)
        passed = scene.clock.monotonic() - begin
        renewed = leases.keep_alive(lease, scene.deadline, scene.seconds)
    finally:
        leases.revoke(lease, scene.deadline)
    if not granted - passed - 1.5 <= left <= granted - passed + 1.5:
        yield Finding(
            "lease",
            "problem",
            f"of {granted:g} s etcd says {left} s are left after {passed:.1f} s",
            "etcd's machine or this one stalls, or its clock jumps: look at its load and virtualization",
        )
    elif renewed != granted:
        yield Finding("lease", "problem", f"a keepalive renewed to {renewed:g} s, not {granted:g} s", "report this")
    elif granted != asked:
        yield Finding(
            "lease",
            "warning",
            f"asked for {asked:g} s, etcd grants {granted:g} s",
            "etcd's least is 1.5 election timeouts, in whole seconds; the granted time counts: set --ttl to it",
        )
    else:
        yield Finding("lease", "ok", f"granted {granted:g} s, counted down, renewed, revoked")


def _check_alarms(scene: _Scene) -> Iterator[Finding]:
    try:
        raised = alarms(scene.connection, scene.deadline)
    except errors.PermissionDenied:
        yield Finding("alarms", "note", "not shown to this user")
        return
    for alarm in raised:
        advice = (
            "compact and defragment, then `etcdctl alarm disarm`; set --auto-compaction-retention"
            if alarm.name == "NOSPACE"
            else "replace the member's data: https://etcd.io/docs/latest/op-guide/data_corruption/"
        )
        yield Finding("alarms", "problem", f"{alarm.name} on member {alarm.member_id:x}", advice)
    if not raised:
        yield Finding("alarms", "ok", "none")


def _check_compaction(scene: _Scene) -> Iterator[Finding]:
    key = scene.settings.keys.full("/ps_desired")
    _, revision = Kv(scene.connection).range(key, b"", scene.deadline)
    advice = "start etcd with --auto-compaction-mode=periodic --auto-compaction-retention=5m"
    if ever_compacted(scene.connection, key, scene.deadline):
        yield Finding("compaction", "ok", "old revisions were compacted")
    elif revision > _MANY_REVISIONS:
        yield Finding("compaction", "warning", f"all {revision} revisions are kept: nobody compacts the store", advice)
    else:
        yield Finding("compaction", "note", "nothing was compacted yet; etcd does not tell whether it will", advice)


def _member_json(member: MemberStatus) -> dict[str, Any]:
    return {
        "endpoint": str(member.endpoint),
        "version": member.version,
        "cluster_id": f"{member.cluster_id:x}",
        "member_id": f"{member.member_id:x}",
        "leader": f"{member.leader:x}" if member.leader else None,
        "revision": member.revision,
        "db_bytes": member.db_size,
        "learner": member.is_learner,
        "seconds": member.seconds,
        "dial_seconds": member.dial_seconds,
    }
