"""Compile the descriptions in this folder into the descriptor sets that the packages ship.

``python protos/compile.py`` writes them (``make protos``); with ``--check`` it compares instead, and exits 1, naming
the file, when a committed set is not what its description compiles to (``make check``).

A descriptor set is data, not code: it has no generated module whose import checks the versions of protobuf, so it is
read by every protobuf that the project allows, and it can be loaded into a private pool.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import grpc_tools
from google.protobuf import descriptor_pb2
from grpc_tools import protoc

PROTOS = Path(__file__).resolve().parent
ROOT = PROTOS.parent

SETS = {
    "etcd/v3.proto": "edl_agent/etcd/etcd_v3.binpb",
    "edl/agent/v1/agent.proto": "edl_agent/sidecar/agent_v1.binpb",
    "grpc/health/v1/health.proto": "edl_agent/sidecar/health_v1.binpb",
}
"""Description, below this folder, and the descriptor set that it is compiled into, below the project's root."""


def compile_set(description: str) -> bytes:
    """Return the serialized ``FileDescriptorSet`` of one description with all that it imports, without source info.

    Raises:
        SystemExit: the description does not compile; protoc has said why on stderr.
    """
    well_known = Path(grpc_tools.__file__).parent / "_proto"
    with tempfile.TemporaryDirectory() as scratch:
        output = Path(scratch) / "set.binpb"
        arguments = ["protoc", f"-I{PROTOS}", f"-I{well_known}", "--include_imports"]
        if protoc.main([*arguments, f"--descriptor_set_out={output}", description]) != 0:
            raise SystemExit(f"protos/{description} does not compile")
        return output.read_bytes()


def same_meaning(one: bytes, other: bytes) -> bool:
    """Compare two serialized sets field by field: another protoc may order the bytes in another way."""
    parse = descriptor_pb2.FileDescriptorSet.FromString
    return bool(parse(one) == parse(other))


def main(arguments: list[str]) -> int:
    """Write the descriptor sets, or compare them where ``--check`` is given; return the exit code."""
    check = arguments == ["--check"]
    if arguments and not check:
        print(__doc__, file=sys.stderr)
        return 2
    stale = []
    for description, output in SETS.items():
        compiled = compile_set(description)
        target = ROOT / output
        if target.exists() and same_meaning(target.read_bytes(), compiled):
            continue
        if check:
            stale.append(f"{output} is not what protos/{description} compiles to: run `make protos` and commit it")
        else:
            target.write_bytes(compiled)
            print(f"wrote {output}")
    for line in stale:
        print(line, file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
