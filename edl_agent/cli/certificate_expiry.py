"""The end of a TLS certificate, from its DER form (RFC 5280): Python's ssl tells it of verified peers only."""

import socket
import ssl
from datetime import UTC, datetime
from pathlib import Path

_PEM_BEGIN, _PEM_END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"


def expiry_of_file(path: str) -> datetime:
    """The earliest end among the certificates of a PEM file. Raises OSError, ValueError (no certificate in it)."""
    text = Path(path).read_text("ascii", "replace")
    blocks = [part.partition(_PEM_END)[0] for part in text.split(_PEM_BEGIN)[1:]]
    if not blocks:
        raise ValueError("holds no PEM certificate")
    return min(not_after(ssl.PEM_cert_to_DER_cert(_PEM_BEGIN + block + _PEM_END)) for block in blocks)


def expiry_of_server(host: str, port: int, cert: str | None, key: str | None, timeout: float) -> datetime:
    """The end of the certificate that a server shows. Nothing is verified here, and nothing is sent.

    Args:
        host: name or address.
        port: TCP port.
        cert: client certificate file, for servers that want one.
        key: its key file.
        timeout: seconds.

    Raises:
        OSError: no connection or no handshake.
        ValueError: no certificate that can be read.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    if cert is not None:
        context.load_cert_chain(cert, key)
    with (
        socket.create_connection((host, port), timeout) as connection,
        context.wrap_socket(connection, server_hostname=host) as secured,
    ):
        der = secured.getpeercert(binary_form=True)
    if der is None:
        raise ValueError("shows no certificate")
    return not_after(der)


def not_after(der: bytes) -> datetime:
    """The end of one certificate.

    Args:
        der: ``SEQUENCE { tbsCertificate SEQUENCE { [0] version?, serial, algorithm, issuer, validity, ... } ... }``.

    Raises:
        ValueError: not a certificate.
    """
    try:
        tbs = _content(_content(der))
        position = 0
        if tbs[0] == 0xA0:  # the explicit version
            position = _after(tbs, position)
        for _ in ("serial", "algorithm", "issuer"):
            position = _after(tbs, position)
        validity = _content(tbs[position:])
        end = validity[_after(validity, 0) :]
        text = _content(end).decode("ascii")
        if end[0] == 0x17:  # UTCTime, two digits of the year: 50 means 1950
            text = ("19" if text[:2] >= "50" else "20") + text
        return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)
    except (IndexError, UnicodeDecodeError) as error:
        raise ValueError("not a certificate") from error


def _bounds(data: bytes, position: int) -> tuple[int, int]:
    """Begin and end of the content of the element at ``position``."""
    length, begin = data[position + 1], position + 2
    if length & 0x80:
        digits = length & 0x7F
        length, begin = int.from_bytes(data[begin : begin + digits], "big"), begin + digits
    return begin, begin + length


def _content(data: bytes) -> bytes:
    begin, end = _bounds(data, 0)
    return data[begin:end]


def _after(data: bytes, position: int) -> int:
    return _bounds(data, position)[1]
