"""PURE: how Kubernetes behaves, as it was measured (`tests/contract` runs the same cases against the real one)."""
