"""PURE: the autoscaler's mind: a snapshot of the cluster in, a plan with its reasons out."""
