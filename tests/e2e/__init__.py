"""`examples/digits` from submission to deletion on a real control plane, with pods as processes."""
