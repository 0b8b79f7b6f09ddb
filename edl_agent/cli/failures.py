"""Exit statuses, and what is said on stderr when something fails: what, where, what to do next."""

import contextlib

import click

OK, ABSENT, USAGE, UNREACHED, LOST, REFUSED, UNKNOWN, STREAMS, INTERNAL = 0, 1, 2, 3, 4, 5, 6, 7, 70

EXIT_STATUS_HELP = """\
  0   done; `register`: ended by a signal, the slot was released
  1   the key is absent; no free slot (register --no-wait); doctor found problems
  2   wrong usage or settings
  3   etcd was not reached, or the --timeout passed
  4   the slot was taken over by a newer process with the same address, or lost (--reclaim never)
  5   etcd refused: login, TLS identity, permission, space, or an unusable /ps_desired
  6   a write was sent and its answer lost: it may have been applied or not
  7   stdout cannot be written or stdin cannot be read (closed, full); `register`: or the
      reader of its stdout went away, the slot was released
  70  a fault of edl-agent itself (run again with --debug)"""

_where = ""
_command = "COMMAND"


class StreamFailed(Exception):
    """stdout cannot be written, or stdin cannot be read; the text is for people."""


def set_command(name: str) -> None:
    """Remember which command runs, for the error text."""
    global _command
    _command = name


def set_where(where: str) -> None:
    """Remember where the command works (endpoints, prefix), for the error text."""
    global _where
    _where = where


def report(error: BaseException) -> int:
    """Say on stderr what went wrong and what to do; returns the exit status."""
    status, advice = _judge(error)
    what = str(error) or type(error).__name__
    if status == INTERNAL:
        what = f"unexpected {type(error).__name__}: {what}"
    lines = [f"Error: {what}"]
    if _where:
        lines.append(f"  where: {_where}")
    if advice:
        lines.append(f"  next:  {advice}")
    say_error("\n".join(lines))
    return status


def say_error(text: str) -> None:
    """A line on stderr; where that is closed or full the exit status has to do."""
    with contextlib.suppress(OSError):
        click.echo(text, err=True)


def advice_for(error: BaseException) -> str:
    """What to do about it; may be empty."""
    return _judge(error)[1]


def _judge(error: BaseException) -> tuple[int, str]:
    if isinstance(error, StreamFailed):
        return STREAMS, ""
    # Only reached with an error of the package, which is imported by then (start-up stays quick).
    from edl_agent import errors

    text = str(error)
    match error:
        case errors.ConfigurationError():
            return USAGE, f"see `edl-agent {_command} --help`"
        case errors.UnknownOutcome():
            return UNKNOWN, "read the key to see whether it was applied; repeat only what may happen twice"
        case errors.SlotsFull():
            return ABSENT, "`edl-agent slots` shows who holds them; without --no-wait the command waits for a free one"
        case errors.DeadlineExceeded() if "a free slot" in text:
            return UNREACHED, "`edl-agent slots` shows who holds them; raise /ps_desired or --timeout"
        case errors.DeadlineExceeded() if "/ps_desired" in text:
            return UNREACHED, "give --num-pservers, or put /ps_desired (`edl-agent put /ps_desired N`)"
        case errors.ClusterMismatch():
            return UNREACHED, "the endpoints belong to different clusters: check --endpoints"
        case errors.DeadlineExceeded() | errors.Unavailable():
            return UNREACHED, "check --endpoints and the network; `edl-agent doctor` looks at each endpoint"
        case errors.SlotTakenOver():
            return LOST, "two processes use one address: stop the older one, or give each its own --host or --port"
        case errors.LeaseLost():
            return (
                LOST,
                "stop what used the index; start again to claim a slot (with --reclaim always it does so itself)",
            )
        case errors.AuthenticationFailed() if "password file" in text:
            return REFUSED, "check --password-file (readable, UTF-8 text)"
        case errors.AuthenticationFailed() if "TLS" in text or "andshake" in text or "cannot read" in text:
            return REFUSED, "check --ca, --cert, --key (readable, not expired, for this host); see `edl-agent doctor`"
        case errors.AuthenticationFailed():
            return REFUSED, "check --user and --password-file"
        case errors.PermissionDenied():
            return REFUSED, "grant the user's role read and write on the job's prefix (etcdctl role grant-permission)"
        case errors.NoSpace():
            return REFUSED, "compact and defragment etcd, then `etcdctl alarm disarm`; set --auto-compaction-retention"
        case errors.InvalidDesiredCount():
            return REFUSED, "put a number: `edl-agent put /ps_desired N`"
        case errors.RequestTooLarge():
            return REFUSED, "etcd takes 1.5 MiB per request by default: store a reference in place of the data"
        case errors.EdlAgentError():
            return REFUSED, ""
        case _:
            return INTERNAL, "run again with --debug and report what it prints"
