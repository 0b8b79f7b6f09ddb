"""``edl-agent run -- COMMAND``: holds a slot for a program that knows nothing of etcd.

The rooms, inside out:

* `policy` (PURE) decides: (what is known, the rules, now) -> start, stop, kill, wait or exit;
* `environment` (PURE) writes the command's environment;
* `guard` is a small process of its own, the command's parent: it kills the command when the slot's deadline passes,
  whatever became of the launcher; `process` is the launcher's end of it;
* `before_start` has what is waited for before a start (`trainer_zero` is a part of that), `command_run` one run of the
  command, `draining` the way out;
* `run` is the loop, `control` the probes and the local requests, `options` what the command line said.
"""
