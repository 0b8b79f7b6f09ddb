"""``edl-agent get``, ``put`` and ``delete``."""

import base64
import os
import sys

import click

from edl_agent.cli.failures import ABSENT, OK, StreamFailed, say_error
from edl_agent.cli.options import Common, shared_options
from edl_agent.cli.output import check_stdout, print_json, printable, say, say_bytes


@click.command()
@click.argument("key", metavar="KEY")
@click.option("-n", "--no-newline", is_flag=True, help="Print the value's bytes and nothing else.")
@shared_options()
def get(common: Common, key: str, no_newline: bool) -> int:
    """Print the value of KEY (below --prefix), or exit with 1 where it is absent.

    JSON: {"key": ..., "value": text or null, "encoding": "utf-8" or "base64"}.
    """
    check_stdout()
    raw = os.fsencode(key)
    with common.client() as client:
        value = client.get_key(raw, timeout=common.seconds)
    if common.json:
        print_json({"key": _text(raw), **_encoded(value)})
    elif value is not None:
        say_bytes(value if no_newline else value + b"\n")
    else:
        say_error(f"{printable(raw)}: absent")
    return OK if value is not None else ABSENT


@click.command()
@click.argument("key", metavar="KEY")
@click.argument("value", metavar="VALUE")
@shared_options()
def put(common: Common, key: str, value: str) -> int:
    """Write VALUE to KEY (below --prefix). VALUE "-" reads it from stdin; put -- before one that begins with a dash."""
    check_stdout()
    raw = os.fsencode(key)
    data = _stdin() if value == "-" else os.fsencode(value)
    with common.client() as client:
        client.put_key(raw, data, timeout=common.seconds)
    if common.json:
        print_json({"key": _text(raw), "written": True})
    else:
        say("OK")
    return OK


@click.command()
@click.argument("key", metavar="KEY")
@shared_options()
def delete(common: Common, key: str) -> int:
    """Delete KEY (below --prefix); exit with 1 where it was absent."""
    check_stdout()
    raw = os.fsencode(key)
    with common.client() as client:
        deleted = client.delete_key(raw, timeout=common.seconds)
    if common.json:
        print_json({"key": _text(raw), "deleted": deleted})
    elif deleted:
        say("deleted")
    else:
        say_error(f"{printable(raw)}: absent")
    return OK if deleted else ABSENT


def _stdin() -> bytes:
    if sys.stdin is None:
        raise StreamFailed("stdin cannot be read: it is closed")
    try:
        return sys.stdin.buffer.read()
    except OSError as error:
        raise StreamFailed(f"stdin cannot be read: {error.strerror or error}") from error


def _text(key: bytes) -> str:
    """A key for JSON. Keys are taken from the command line as bytes: the locale may know less than UTF-8."""
    return key.decode("utf-8", "backslashreplace")


def _encoded(value: bytes | None) -> dict[str, str | None]:
    if value is None:
        return {"value": None}
    try:
        return {"value": value.decode(), "encoding": "utf-8"}
    except UnicodeDecodeError:
        return {"value": base64.b64encode(value).decode(), "encoding": "base64"}
