"""``edl-agent run -- COMMAND``: holds a slot for a program that knows nothing of etcd.

The rooms, inside out:

* `policy` (PURE) decides: (what is known, the rules, now) -> start, stop, kill, wait or exit;
* `environment` (PURE) writes the command's environment;
* `guard` is a small process of its own, the command's parent: it kills the command when the slot's deadline passes,
  whatever became of the launcher;
* `process` is the launcher's end of it, `run` the loop, `control` the probes and the local requests.
"""
