"""Internal: the only room of the agent that knows gRPC and etcd's method names.

``edl_controller`` may import it too; programs of users should not. Rooms: `wire` (messages), `endpoints` (URLs),
`status` (what a gRPC error means), `peer` (one endpoint's channel, TLS), `connection` (choice of endpoint, deadlines,
token), `kv`, `lease`, `watch`.
"""
