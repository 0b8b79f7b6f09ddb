"""PURE: names and contents of checkpoint files, manifests and metadata; what to restore and what to throw away.

One checkpoint of one shard is three things, made in this order:

* the *file* ``shard-<i>-of-<n>.step-<s>.epoch-<e>.<uuid>.ckpt`` with the program's bytes;
* the *manifest* beside it, the same name with ``.json``: length, crc32 and order, sealed by a crc32 of its own;
* the *metadata* in etcd, ``/checkpoints/<i>``: the original's JSON ``{uuid, path, crc32, timestamp}``, which its Go
  pservers read, with fields of ours that they pass over (and ``previous``, the older ones that are kept).

Which of two checkpoints of a shard is the later one? Not the step says so (a job set back to an older checkpoint goes
through the same steps again), nor the time of day. A *generation* counts the incarnations that wrote into the folder;
within it the epoch decides, then the step. So an incarnation that was fenced off never wins over the one after it,
although nobody asks etcd, and although epochs start again at 1 with a new etcd.
"""

import json
import re
import zlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from edl_agent.keys import MAX_DESIRED

Policy = Literal["complete_set", "newest"]
"""What to restore: the newest step of which every shard has a checkpoint, or the newest checkpoint of one's own."""

NEWEST_OF_ALL = 2**62
"""Generation of what etcd names in the original's form: its pservers write no manifest and count no generations."""

LONGEST_HISTORY = 16
"""Most older checkpoints that the metadata name."""

LARGEST_MANIFEST = 64 * 1024
"""Bytes; a larger file is no manifest."""

_VERSION = 1
_NAME = re.compile(
    r"shard-(?P<index>[0-9]{5,9})-of-(?P<shards>[0-9]{5,9})\.step-(?P<step>[0-9]{12,19})"
    r"\.epoch-(?P<epoch>[0-9]{1,19})\.(?P<uuid>[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})"
    r"(?P<kind>\.ckpt(?:\.json)?(?:\.tmp|\.corrupt)?)"
)
_UUID = re.compile(r"[A-Za-z0-9-]{1,64}")
_FOREIGN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s\x00-\x1f\x7f]+")
_MD5 = re.compile(r"[0-9a-f]{32}")
_RESERVED = (".json", ".tmp", ".corrupt")
_LARGEST = 2**63 - 1

Kind = Literal[".ckpt", ".ckpt.json", ".ckpt.tmp", ".ckpt.json.tmp", ".ckpt.corrupt", ".ckpt.json.corrupt"]


Identity = tuple[int, str]
"""What makes a checkpoint this one: index of the shard and uuid."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One checkpoint of one shard, as a manifest or metadata tell of it.

    Attributes:
        index: the shard, 0-based.
        shards: how many the parameters were cut into; 0 = not known (the original does not say).
        step: the program's step id; 0 = not known.
        epoch: of the slot when it was begun; 0 = without etcd.
        uuid: unique.
        place: name of a file in the folder, or a URI.
        size: bytes, ``None`` = not known.
        crc32: IEEE, ``None`` = not known.
        timestamp: nanoseconds since 1970, for people.
        lease: under which the slot was held: with the epoch it names an incarnation, also where etcd lost its data and
            gives out the same epochs again; 0 = without etcd.
        generation: counts incarnations; see above.
        md5: of very old metadata, else empty.
    """

    index: int
    shards: int
    step: int
    epoch: int
    uuid: str
    place: str
    size: int | None = None
    crc32: int | None = None
    timestamp: int = 0
    lease: int = 0
    generation: int = 0
    md5: str = ""

    @property
    def identity(self) -> Identity:
        """Index and uuid."""
        return (self.index, self.uuid)

    @property
    def remote(self) -> bool:
        """Whether the place is a URI, which nobody here can read."""
        return is_uri(self.place)

    @property
    def rank(self) -> tuple[int, int, int, int, str]:
        """The greater, the later, among the checkpoints of one shard."""
        return (self.generation, self.epoch, self.step, self.timestamp, self.uuid)

    @property
    def file(self) -> str:
        """The name that the file has when it is ours; the manifest has it with ``.json`` in any case."""
        return file_name(self.index, self.shards, self.step, self.epoch, self.uuid)

    @property
    def manifest(self) -> str:
        """Name of the manifest."""
        return self.file + ".json"

    @property
    def ours(self) -> bool:
        """Whether the file was named, and so may be deleted, by the store."""
        return self.place == self.file


@dataclass(frozen=True, slots=True)
class Name:
    """What a file name says. ``kind`` is its ending."""

    index: int
    shards: int
    step: int
    epoch: int
    uuid: str
    kind: Kind


# --- names ---


def file_name(index: int, shards: int, step: int, epoch: int, uuid: str) -> str:
    """Name of a checkpoint file; names sort by shard, then step."""
    return f"shard-{index:05}-of-{shards:05}.step-{step:012}.epoch-{epoch}.{uuid}.ckpt"


def parse_name(name: str) -> Name | None:
    """What a name says, or ``None`` where it is none of ours."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    index, shards, step, epoch = (int(found[part]) for part in ("index", "shards", "step", "epoch"))
    kind: Kind = found["kind"]  # type: ignore[assignment]  # as the pattern says
    parsed = Name(index, shards, step, epoch, found["uuid"], kind)
    canonical = file_name(index, shards, step, epoch, parsed.uuid).removesuffix(".ckpt") + kind
    return parsed if canonical == name and index < shards <= MAX_DESIRED and step <= _LARGEST else None


def is_uri(place: str) -> bool:
    """Whether this names something outside of file systems (``s3://bucket/key``)."""
    return "://" in place


def check_place(place: str) -> str:
    """A URI, or the bare name of a file in the folder, that may be looked at.

    Raises:
        ValueError: it could lead out of the folder, or is a name that the store uses itself.
    """
    if is_uri(place):
        if len(place) > 1024 or not _URI.fullmatch(place):
            raise ValueError(f"{place[:80]!r} is no URI")
        return place
    if not _FOREIGN.fullmatch(place) or place.endswith(_RESERVED):
        raise ValueError(f"{place[:80]!r} is no name of a checkpoint file (letters, digits, '.', '_', '-')")
    return place


# --- manifests ---


def encode_manifest(entry: Entry) -> bytes:
    """What stands in the manifest file: one line of JSON."""
    fields = _fields(entry, entry.place)
    return _dump(fields | {"seal": _seal(fields)}) + b"\n"


def decode_manifest(name: str, raw: bytes) -> Entry:
    """The checkpoint that a manifest tells of.

    Args:
        name: of the manifest file; what it says must be what the content says.
        raw: content.

    Raises:
        ValueError: it is no manifest, or not whole.
    """
    parsed = parse_name(name)
    if parsed is None or parsed.kind != ".ckpt.json":
        raise ValueError("not named like a manifest")
    fields = _load(raw)
    seal = fields.pop("seal", None)
    if seal != _seal(fields):
        raise ValueError("the manifest is damaged")
    entry = _entry(fields, parsed.index)
    if entry.manifest != name:
        raise ValueError("the manifest belongs to another name")
    if not entry.remote and (entry.size is None or entry.crc32 is None):
        raise ValueError("the manifest says no length or crc32")
    return entry


# --- metadata ---


def encode_metadata(entry: Entry, folder: str, previous: Iterable[Entry] = ()) -> bytes:
    """The value of ``/checkpoints/<i>``.

    Args:
        entry: the newest.
        folder: absolute path of the folder: the original opens ``path`` as it stands.
        previous: older ones that are kept, newest first.
    """

    def path(one: Entry) -> str:
        return one.place if one.remote else f"{folder.rstrip('/')}/{one.place}"

    older = [_fields(one, path(one)) for one in previous][:LONGEST_HISTORY]
    return _dump(_fields(entry, path(entry)) | ({"previous": older} if older else {}))


def decode_metadata(index: int, raw: bytes) -> list[Entry]:
    """The checkpoints that ``/checkpoints/<index>`` names, newest first.

    Tolerates the original's forms: without our fields, ``md5`` in place of ``crc32``, no ``path`` (the file is named by
    the uuid), a timestamp as text.

    Raises:
        ValueError: nothing usable.
    """
    fields = _load(raw)
    entries = [_entry(fields, index, newest=True)]
    previous = fields.get("previous")
    for one in previous[:LONGEST_HISTORY] if isinstance(previous, list) else []:
        try:
            entries.append(_entry(one if isinstance(one, dict) else {}, index))
        except ValueError:
            continue
    return entries


# --- what to restore, what to throw away ---


def choose(
    entries: Iterable[Entry], policy: Policy, index: int, shards: int, rejected: Collection[Identity] = ()
) -> tuple[Entry, ...]:
    """What to restore next; ask again with those `rejected` that did not verify.

    Args:
        entries: what is known, of all shards for ``"complete_set"``.
        policy: see `Policy`.
        index: the own shard.
        shards: number of shards now; checkpoints of another number hold other parameters and are passed over.
        rejected: not to be chosen.

    Returns:
        One entry for ``"newest"``; one for each shard, by index, for ``"complete_set"``; none if there is nothing.
    """
    usable = [entry for entry in entries if entry.identity not in rejected]
    if policy == "newest":
        own = [entry for entry in usable if entry.index == index and entry.shards in (0, shards)]
        return (max(own, key=lambda entry: entry.rank),) if own else ()
    sets = complete_sets(entry for entry in usable if entry.shards == shards)
    return max(sets, key=lambda members: members[0].step, default=())


def complete_sets(entries: Iterable[Entry]) -> list[tuple[Entry, ...]]:
    """The sets (one number of shards, one step) of which every shard has a checkpoint, each sorted by index.

    A checkpoint is left out when a later incarnation of its shard has saved at the same or an earlier step: the job had
    been set back before it, and its step now means another state. (Not where the generation is not known, 0.)
    """
    by_index: dict[int, list[Entry]] = {}
    for entry in entries:
        by_index.setdefault(entry.index, []).append(entry)
    sets: dict[tuple[int, int], dict[int, Entry]] = {}
    for index, group in by_index.items():
        group.sort(key=lambda entry: entry.rank, reverse=True)
        later: list[Entry] = []
        for entry in group:
            if entry.generation and any(one.step <= entry.step and one.rank[:2] > entry.rank[:2] for one in later):
                continue
            if entry.generation:
                later.append(entry)
            if entry.shards:
                sets.setdefault((entry.shards, entry.step), {}).setdefault(index, entry)
    return [
        tuple(members[index] for index in range(shards))
        for (shards, _), members in sets.items()
        if len(members) == shards and max(members) == shards - 1
    ]


def prunable(entries: Iterable[Entry], newest: Entry, keep: int) -> list[Entry]:
    """Checkpoints of the newest one's shard that nobody needs once it is committed.

    Kept are the `keep` newest, the own members of the `keep` newest complete sets, and whatever is later than `newest`
    (that of another incarnation).
    """
    entries = list(entries)
    own = sorted((one for one in entries if one.index == newest.index), key=lambda one: one.rank, reverse=True)
    own = [one for one in own if one.rank <= newest.rank]
    kept = {one.identity for one in own[:keep]} | {newest.identity}
    members = [one for members in complete_sets(entries) for one in members if one.index == newest.index]
    members.sort(key=lambda one: one.rank, reverse=True)
    kept |= {one.identity for one in members[:keep]}
    return [one for one in own if one.identity not in kept]


def next_generation(own: Iterable[Entry], lease: int, epoch: int) -> int:
    """The generation of an incarnation: the one it has already, else the next one.

    Args:
        own: what is known of its shard.
        lease: of its slot, 0 = without etcd: then every store is an incarnation.
        epoch: of its slot.
    """
    highest = 0
    for entry in own:
        if lease and (entry.lease, entry.epoch) == (lease, epoch):
            return entry.generation
        if entry.generation < NEWEST_OF_ALL:
            highest = max(highest, entry.generation)
    return highest + 1


def latest_epoch(own: Iterable[Entry]) -> int:
    """The highest epoch in which a shard was saved.

    If it is higher than one's own, one is fenced off, or etcd has lost its data and begun again.
    """
    return max((entry.epoch for entry in own), default=0)


# --- inside ---


def _fields(entry: Entry, path: str) -> dict[str, Any]:
    fields: dict[str, Any] = {"uuid": entry.uuid, "path": path}
    if entry.crc32 is not None:
        fields["crc32"] = entry.crc32
    if entry.md5:
        fields["md5"] = entry.md5
    fields["timestamp"] = entry.timestamp
    if entry.shards:
        fields |= {
            "v": _VERSION,
            "index": entry.index,
            "shards": entry.shards,
            "step": entry.step,
            "epoch": entry.epoch,
            "lease": entry.lease,
            "generation": entry.generation,
        }
        if entry.size is not None:
            fields["size"] = entry.size
    return fields


def _entry(fields: dict[str, Any], index: int, *, newest: bool = False) -> Entry:
    uuid, path = fields.get("uuid"), fields.get("path")
    if not isinstance(uuid, str) or not _UUID.fullmatch(uuid):
        raise ValueError("there is no usable uuid")
    if path is None or path == "":
        path = uuid
    if not isinstance(path, str):
        raise ValueError("the path is no text")
    # Only the last part counts: the folder is the reader's own, wherever the writer had it mounted.
    place = check_place(path if is_uri(path) else path.rpartition("/")[2])
    shards = _whole(fields, "shards", MAX_DESIRED)
    if shards and (_whole(fields, "index", MAX_DESIRED) != index or index >= shards):
        raise ValueError("it belongs to another shard")
    md5 = fields.get("md5")
    crc32 = fields.get("crc32")
    return Entry(
        index=index,
        shards=shards,
        step=_whole(fields, "step") if shards else 0,
        epoch=_whole(fields, "epoch") if shards else 0,
        uuid=uuid,
        place=place,
        size=_whole(fields, "size") if shards and "size" in fields else None,
        crc32=_whole(fields, "crc32", 2**32 - 1) if crc32 is not None else None,
        timestamp=_timestamp(fields.get("timestamp")),
        lease=_whole(fields, "lease") if shards else 0,
        generation=_whole(fields, "generation", NEWEST_OF_ALL - 1) if shards else NEWEST_OF_ALL if newest else 0,
        md5=md5 if isinstance(md5, str) and _MD5.fullmatch(md5) else "",
    )


def _whole(fields: dict[str, Any], name: str, most: int = _LARGEST) -> int:
    value = fields.get(name, 0)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise ValueError(f"{name} is no whole number in 0..{most}")
    return value


def _timestamp(value: object) -> int:
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,19}", value):
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LARGEST else 0


def _load(raw: bytes) -> dict[str, Any]:
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError):
        raise ValueError("it is no JSON") from None
    if not isinstance(found, dict):
        raise ValueError("it is no JSON object")
    return found


def _dump(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()


def _seal(fields: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode())
