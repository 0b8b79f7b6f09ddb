"""The test bench: real etcd processes, proxies that break connections and calls, certificates, clocks, agents as
processes.

The one-page guide is ``tests/README.md``.
"""
