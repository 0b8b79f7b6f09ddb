"""Adapters: the clusters that the controller can run on, and the port they share."""
