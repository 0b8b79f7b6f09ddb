"""``edl-agent sidecar``: the agent for programs in any language, on a Unix socket."""

import logging
import signal

import click

from edl_agent.cli.durations import POSITIVE_SECONDS
from edl_agent.cli.failures import OK
from edl_agent.cli.options import Common, shared_options
from edl_agent.cli.output import print_json
from edl_agent.client import EtcdClient
from edl_agent.errors import ConfigurationError
from edl_agent.launcher.inbox import Inbox
from edl_agent.sidecar.memory import give_back_large_blocks
from edl_agent.sidecar.server import HANG, Sidecar, SidecarOptions, TcpTls

_log = logging.getLogger(__name__)


@click.command()
@click.option(
    "--socket",
    envvar="EDL_SOCKET",
    show_envvar=True,
    required=True,
    metavar="PATH",
    help="Unix socket, in a folder of its own (made with mode 0700); session.json and pservers.json lie beside it.",
)
@click.option("--name", metavar="NAME", help="For reports and drain requests; default POD_NAME, else hostname-pid.")
@click.option("--host", metavar="H", help="Address to register; default POD_IP, else the source of the route to etcd.")
@click.option(
    "--num-pservers", type=click.IntRange(1, 10_000), metavar="N", help="Create /ps_desired with N where it is absent."
)
@click.option(
    "--peer-uid",
    "peer_uids",
    type=click.IntRange(0),
    multiple=True,
    metavar="UID",
    help="Another user who may connect, such as the main container's; may be repeated.",
)
@click.option("--listen", metavar="HOST:PORT", help="Listen on TCP too; beyond the loopback only with the three below.")
@click.option("--tls-cert", metavar="FILE", help="TCP: certificate.")
@click.option("--tls-key", metavar="FILE", help="TCP: its private key.")
@click.option("--tls-client-ca", metavar="FILE", help="TCP: programs must show a certificate of this CA.")
@click.option(
    "--hang-seconds",
    type=POSITIVE_SECONDS,
    default=HANG,
    show_default=True,
    metavar="S",
    help="A program whose connection does not answer pings for so long counts as dead.",
)
@click.option(
    "--report-interval", type=POSITIVE_SECONDS, default=5.0, show_default=True, metavar="S", help="Between two reports."
)
@click.option(
    "--drain-seconds",
    type=POSITIVE_SECONDS,
    default=20.0,
    show_default=True,
    metavar="S",
    help="On a signal with a program attached: so long it may take to go.",
)
@shared_options(logging.INFO)
def sidecar(
    common: Common,
    socket: str,
    name: str | None,
    host: str | None,
    num_pservers: int | None,
    peer_uids: tuple[int, ...],
    listen: str | None,
    tls_cert: str | None,
    tls_key: str | None,
    tls_client_ca: str | None,
    hang_seconds: float,
    report_interval: float,
    drain_seconds: float,
) -> int:
    """Serve one program: register, session, keys, pservers, tasks, report, drain (docs/sidecar.md).

    Prints {"event": "listening", ...} when the program may connect. The program's Attach stream is its sign of life. A
    signal asks an attached program to go and waits for it; a second one does not.
    """
    options = SidecarOptions(
        socket=socket,
        name=name,
        peer_uids=peer_uids,
        tcp=_address(listen) if listen else None,
        tls=_tls(tls_cert, tls_key, tls_client_ca),
        hang=hang_seconds,
        report_interval=report_interval,
    )

    def make_client(count: int | None, own_host: str | None) -> EtcdClient:
        return common.client(count if count is not None else num_pservers, host=own_host or host)

    give_back_large_blocks()
    inbox: Inbox[str] = Inbox()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: inbox.put(signal.Signals(number).name))
    with Sidecar(make_client, options, lambda: inbox.put("")) as running:
        print_json({"event": "listening", "socket": socket, "port": running.port, "name": running.drain.name})
        why = _next(inbox)
        if why and running.life.program is not None:
            running.drain.start(why, drain_seconds)
            _log.info("Asked the program to go; waiting at most %g s for it", drain_seconds)
            left = drain_seconds
            while left > 0 and not running.wait_detached(0.2) and inbox.get(0) is None:
                left -= 0.2
    return OK


def _next(inbox: Inbox[str]) -> str:
    while (found := inbox.get(3600.0)) is None:
        pass
    return found


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ConfigurationError(f"--listen {text!r} is not HOST:PORT")
    return host.strip("[]"), int(port)


def _tls(cert: str | None, key: str | None, client_ca: str | None) -> TcpTls | None:
    if cert and key and client_ca:
        return TcpTls(cert, key, client_ca)
    if cert or key or client_ca:
        raise ConfigurationError("--tls-cert, --tls-key and --tls-client-ca go together")
    return None
