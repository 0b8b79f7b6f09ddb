"""A small kubelet: runs the pods that are bound to a node as groups of processes of this machine.

`NodeAgent` is the way in. It knows its cluster by the port only (`edl_controller.cluster.port`).

What is not as in a container, on purpose:

- ``image`` names no file system: the process finds the programs of this machine (`images` says which).
- Every pod has an address of its own, 127.x.y.z; programs must bind ``POD_IP``. All pods share the machine's ports on
  the wildcard address: such a bind is reported by the event ``WildcardBind``.
- Processes run as the user of the node; ``securityContext`` is not applied. Limits are not enforced, but for the nice
  value (`process_request`); a pod that takes too much is not evicted.
- Volumes appear at their mount path where the node may mount (root), else by a symbolic link where that path is free;
  ``EDL_VOLUME_<NAME>`` names the folder always (`volumes`).
- Without a working directory of its own a container starts in an empty folder.
"""
