"""Why a TLS handshake with an endpoint fails, in words that name what to mend. Only used after gRPC has failed.

gRPC's own text depends on its version: older ones say CERTIFICATE_VERIFY_FAILED for an expired certificate and for an
unknown CA alike. So the handshake is done once more with Python's `ssl`, with the same files and the same rules, and
its error is translated. Nothing is sent in clear, and nothing but the handshake is sent at all.
"""

import contextlib
import re
import socket
import time
from typing import TYPE_CHECKING

from edl_agent.errors import EdlAgentError
from edl_agent.etcd.endpoints import Endpoint
from edl_agent.etcd.identity import TlsFiles

if TYPE_CHECKING:
    import ssl  # at run time only when something is wrong: it costs a few milliseconds of every start

_SUSPICIOUS = re.compile("andshake|SSL_ERROR|erification|peer certificate|Socket closed|empty address list")
"""What gRPC's texts have in common when the cause may be TLS (grpcio 1.66 to 1.85)."""

_HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
"""A client's first bytes (RFC 9113, 3.4): with TLS 1.3 a refused client certificate shows only in the answer."""

# Numbers of OpenSSL's X509_V_ERR_*.
_VERIFY = {
    9: "the server's certificate is not valid yet",
    10: "the server's certificate has expired",
    18: "the server's certificate is signed by an unknown CA (it is self-signed)",
    19: "the server's certificate is signed by an unknown CA",
    20: "the server's certificate is signed by an unknown CA",
    21: "the server's certificate is signed by an unknown CA",
}
_NAME_MISMATCH = (62, 64)


def may_be_tls(text: str) -> bool:
    """Whether gRPC's text for a failed connection may hide a TLS fault, so that `diagnose` is worth a connection."""
    return _SUSPICIOUS.search(text) is not None


def diagnose(endpoint: Endpoint, tls: TlsFiles, seconds: float) -> str | None:
    """What is wrong with TLS at this endpoint.

    Args:
        endpoint: an https endpoint.
        tls: the files that gRPC was given.
        seconds: for the whole look.

    Returns:
        The reason; ``None`` where TLS works, or where no connection comes about (then TLS is not the fault).
    """
    import ssl

    try:
        context = _context(tls)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        return f"the TLS files cannot be used: {_text(error)}"
    except EdlAgentError as error:
        return str(error)
    end = time.monotonic() + seconds
    name = tls.server_name or endpoint.host
    try:
        with socket.create_connection((endpoint.host, endpoint.port), timeout=seconds) as plain:
            plain.settimeout(max(0.05, end - time.monotonic()))
            with context.wrap_socket(plain, server_hostname=name) as secured:
                secured.settimeout(max(0.05, end - time.monotonic()))
                with contextlib.suppress(TimeoutError):
                    secured.sendall(_HTTP2_PREFACE)
                    secured.recv(1)
        return None
    except ssl.SSLError as error:
        return _meaning(error, name, tls)
    except OSError:
        return None


def _context(tls: TlsFiles) -> "ssl.SSLContext":
    import ssl

    context = ssl.create_default_context(cafile=tls.ca)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["h2"])
    if tls.cert is not None:
        # An encrypted key must not ask at the terminal.
        context.load_cert_chain(tls.cert, tls.key, password=lambda: "")
    return context


def _meaning(error: "ssl.SSLError", name: str, tls: TlsFiles) -> str | None:
    import ssl

    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in _NAME_MISMATCH:
            return f"host name mismatch: the server's certificate is not valid for {name!r}"
        return f"{_VERIFY.get(error.verify_code, 'the server cannot be trusted')} ({error.verify_message})"
    reason = error.reason or ""
    if "ALERT" in reason and ("CERTIFICATE" in reason or "UNKNOWN_CA" in reason):
        given = "is expired or of a CA unknown to it" if tls.cert else "is wanted, and none is configured"
        return f"etcd refuses this client: a client certificate {given} ({reason})"
    if reason in ("UNSUPPORTED_PROTOCOL", "TLSV1_ALERT_PROTOCOL_VERSION", "WRONG_SSL_VERSION"):
        return f"the server does not speak TLS 1.2 or newer ({reason})"
    if reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"):
        return f"the server does not speak TLS: is it an http endpoint? ({reason})"
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return None  # closed in between: a server that stops does this, too
    return f"TLS handshake failed ({_text(error)})"


def _text(error: Exception) -> str:
    reason = getattr(error, "reason", None) or getattr(error, "strerror", None)
    return str(reason or error)
