"""Just enough of the protobuf wire format to read and write etcd messages in the bench without the product's code."""

from __future__ import annotations


def varint(value: int) -> bytes:
    """Encode an unsigned number (a negative one as its 64-bit complement)."""
    value &= (1 << 64) - 1
    out = bytearray()
    while True:
        low, value = value & 0x7F, value >> 7
        out.append(low | (0x80 if value else 0))
        if not value:
            return bytes(out)


def encode(*fields: tuple[int, int | bytes | str]) -> bytes:
    """Encode (field number, value) pairs; a message as a value is given as its bytes."""
    out = b""
    for number, value in fields:
        if isinstance(value, int):
            out += varint(number << 3) + varint(value)
        else:
            data = value.encode() if isinstance(value, str) else value
            out += varint(number << 3 | 2) + varint(len(data)) + data
    return out


def fields(data: bytes) -> list[tuple[int, int | bytes]]:
    """Decode into (field number, value) pairs: numbers as unsigned ints, everything else as bytes. Raises
    ValueError.
    """
    found: list[tuple[int, int | bytes]] = []
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            if at >= len(data):
                raise ValueError("the message ends in the middle of a number")
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                return value

    while at < len(data):
        key = number()
        match key & 7:
            case 0:
                found.append((key >> 3, number()))
            case 2:
                size = number()
                found.append((key >> 3, data[at : at + size]))
                at += size
            case 1 | 5 as kind:
                size = 8 if kind == 1 else 4
                found.append((key >> 3, data[at : at + size]))
                at += size
            case kind:
                raise ValueError(f"unknown wire type {kind}")
    return found


def field(data: bytes, *path: int) -> int | bytes | None:
    """The last value at a path of field numbers, None where it is absent."""
    value: int | bytes | None = data
    for step in path:
        if not isinstance(value, bytes):
            return None
        value = next((v for n, v in reversed(fields(value)) if n == step), None)
    return value


def put_request(key: str | bytes, value: str | bytes, lease: int = 0) -> bytes:
    """etcdserverpb.PutRequest."""
    return encode((1, key), (2, value), *([(3, lease)] if lease else []))


def range_request(key: str | bytes, range_end: bytes = b"") -> bytes:
    """etcdserverpb.RangeRequest."""
    return encode((1, key), *([(2, range_end)] if range_end else []))


def lease_grant_request(ttl: int) -> bytes:
    """etcdserverpb.LeaseGrantRequest."""
    return encode((1, ttl))


def lease_keep_alive_request(lease: int) -> bytes:
    """etcdserverpb.LeaseKeepAliveRequest."""
    return encode((1, lease))


def watch_create_request(key: str | bytes, start_revision: int = 0) -> bytes:
    """etcdserverpb.WatchRequest with a create request."""
    return encode((1, encode((1, key), *([(3, start_revision)] if start_revision else []))))


def watch_cancelled(header: bytes, watch_id: int, *, reason: str = "", compact_revision: int = 0) -> bytes:
    """etcdserverpb.WatchResponse that says that a watch was cancelled."""
    return encode(
        (1, header),
        *([(2, watch_id)] if watch_id else []),
        (4, 1),
        *([(5, compact_revision)] if compact_revision else []),
        *([(6, reason)] if reason else []),
    )
