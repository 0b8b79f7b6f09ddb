"""``edl-agent get``, ``put`` and ``delete``."""

import base64
import sys

import click

from edl_agent.cli.failures import ABSENT, OK
from edl_agent.cli.options import Common, shared_options
from edl_agent.cli.output import print_json


@click.command()
@click.argument("key", metavar="KEY")
@click.option("-n", "--no-newline", is_flag=True, help="Print the value's bytes and nothing else.")
@shared_options()
def get(common: Common, key: str, no_newline: bool) -> int:
    """Print the value of KEY (below --prefix), or exit with 1 where it is absent.

    JSON: {"key": ..., "value": text or null, "encoding": "utf-8" or "base64"}.
    """
    with common.client() as client:
        value = client.get_key(key, timeout=common.seconds)
    if common.json:
        print_json({"key": key, **_encoded(value)})
    elif value is not None:
        sys.stdout.buffer.write(value if no_newline else value + b"\n")
        sys.stdout.buffer.flush()
    else:
        click.echo(f"{key}: absent", err=True)
    return OK if value is not None else ABSENT


@click.command()
@click.argument("key", metavar="KEY")
@click.argument("value", metavar="VALUE")
@shared_options()
def put(common: Common, key: str, value: str) -> int:
    """Write VALUE to KEY (below --prefix). VALUE "-" reads it from stdin; put -- before one that begins with a dash."""
    raw = sys.stdin.buffer.read() if value == "-" else value.encode("utf-8", "surrogateescape")
    with common.client() as client:
        client.put_key(key, raw, timeout=common.seconds)
    if common.json:
        print_json({"key": key, "written": True})
    else:
        click.echo("OK")
    return OK


@click.command()
@click.argument("key", metavar="KEY")
@shared_options()
def delete(common: Common, key: str) -> int:
    """Delete KEY (below --prefix); exit with 1 where it was absent."""
    with common.client() as client:
        deleted = client.delete_key(key, timeout=common.seconds)
    if common.json:
        print_json({"key": key, "deleted": deleted})
    else:
        click.echo("deleted" if deleted else f"{key}: absent", err=not deleted)
    return OK if deleted else ABSENT


def _encoded(value: bytes | None) -> dict[str, str | None]:
    if value is None:
        return {"value": None}
    try:
        return {"value": value.decode(), "encoding": "utf-8"}
    except UnicodeDecodeError:
        return {"value": base64.b64encode(value).decode(), "encoding": "base64"}
