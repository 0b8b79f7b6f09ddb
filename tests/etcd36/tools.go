//go:build tools

// Package etcd36 names the programs that build.py builds, so that go.mod and go.sum hold all that they need.
package etcd36

import (
	_ "go.etcd.io/etcd/etcdctl/v3"
	_ "go.etcd.io/etcd/server/v3"
)
