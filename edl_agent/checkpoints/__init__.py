"""Checkpoints of pservers: a crash at any moment leaves a good one, and it is found again with or without etcd."""

from edl_agent.checkpoints.checkpoint import Checkpoint
from edl_agent.checkpoints.layout import Policy
from edl_agent.checkpoints.search import Skipped
from edl_agent.checkpoints.store import CheckpointStore

__all__ = ["Checkpoint", "CheckpointStore", "Policy", "Skipped"]
