"""The sidecar: what the library does, for programs in any language, as a gRPC service on a Unix socket.

Needs nothing beyond the package's own dependencies. The protocol is ``protos/edl/agent/v1/agent.proto``.
"""
