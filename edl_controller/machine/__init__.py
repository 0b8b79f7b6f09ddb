"""What makes one machine a cluster: an etcd, the loops that imitate Kubernetes' controllers, and nodes."""
