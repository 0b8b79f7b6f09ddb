"""The contract's calls for the children of a TrainingJob, over any cluster that reads and writes objects."""

from __future__ import annotations


class WorkloadCalls:
    """Mixed into a cluster (`edl_controller.cluster.port.WorkloadAccess`)."""
