"""PURE: the environment of the command: ``EDL_*``, the classic and the present ``PADDLE_*``, ``TF_CONFIG``.

The rule where the user's own environment has a variable already: what the launcher *knows* (who this process is, who
the pservers are, where etcd is) replaces it, since an old value would be wrong; what is only a *default* (how many
trainers, this machine's address of a trainer, the ports' numbers) gives way to it. ``TF_CONFIG`` is written on request
only, and then it is knowledge. Nothing is taken away but the variables of knowledge that do not apply: a list of
pservers is there only when it is complete.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from edl_agent.keys import Role

_TRAINER_COUNTS = ("TRAINERS", "PADDLE_TRAINERS_NUM", "PADDLE_INIT_NUM_GRADIENT_SERVERS")
"""How many trainers there are at the start. Late trainers beyond it are fine; so nothing has to know it."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known when the command is started.

    Attributes:
        role: whose slot.
        index: held.
        epoch: of this start.
        name: under which this process reports and is asked to drain.
        address: as registered: ``ip:port`` of a pserver; of a trainer ``ip:port`` or a name.
        host: this machine's address.
        port: of this process; ``None`` of a trainer that has none.
        pservers: ``ip:port`` by index; empty while incomplete.
        num_pservers: the desired count, ``None`` where unknown.
        num_trainers: as given by the user, ``None`` where not.
        trainers: addresses of the trainers by index, for ``TF_CONFIG``.
        endpoints: of etcd, comma-separated.
        prefix: of the job's keys.
        socket: of a sidecar.
        control: of this launcher.
        pservers_file: JSON that is kept up to date.
        tf_config: whether ``TF_CONFIG`` is written.
    """

    role: Role
    index: int
    epoch: int
    name: str
    address: str
    host: str
    port: int | None = None
    pservers: tuple[str, ...] = ()
    num_pservers: int | None = None
    num_trainers: int | None = None
    trainers: tuple[tuple[int, str], ...] = ()
    endpoints: str = ""
    prefix: str = ""
    socket: str = ""
    control: str = ""
    pservers_file: str = ""
    tf_config: bool = False


def environment(facts: Facts, base: Mapping[str, str]) -> dict[str, str]:
    """The whole environment of the command.

    Args:
        facts: at this start.
        base: the launcher's own.
    """
    found = dict(base)
    for name, default in _defaults(facts, base).items():
        if not found.get(name):
            found[name] = default
    for name, value in (_edl(facts) | _paddle(facts)).items():
        if value is None:
            found.pop(name, None)
        else:
            found[name] = value
    if facts.tf_config:
        found["TF_CONFIG"] = json.dumps(tf_config(facts))
    return found


def split_address(address: str) -> tuple[str, str]:
    """Host (an IPv6 one without brackets) and port of ``host:port``; the port is empty where there is none."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit() or (":" in host and not host.startswith("[")):
        return address, ""
    return host.removeprefix("[").removesuffix("]"), port


def tf_config(facts: Facts) -> dict[str, object]:
    """TensorFlow's description of the cluster, as of this start.

    Trainers are ``worker``: a list by index where all indices up to the highest are held, else a sparse map, which
    TensorFlow's ``ClusterSpec`` takes too.
    """
    workers = dict(facts.trainers)
    if facts.role == "trainer":
        workers[facts.index] = facts.address
    indices = sorted(workers)
    dense = indices == list(range(len(indices)))
    listed = [workers[i] for i in indices] if dense else {str(i): workers[i] for i in indices}
    cluster: dict[str, object] = {"ps": list(facts.pservers)}
    if workers:
        cluster["worker"] = listed
    return {"cluster": cluster, "task": {"type": "ps" if facts.role == "pserver" else "worker", "index": facts.index}}


def _edl(facts: Facts) -> dict[str, str | None]:
    return {
        "EDL_ROLE": facts.role,
        "EDL_INDEX": str(facts.index),
        "EDL_EPOCH": str(facts.epoch),
        "EDL_NAME": facts.name,
        "EDL_PSERVERS": ",".join(facts.pservers) or None,
        "EDL_NUM_PSERVERS": None if facts.num_pservers is None else str(facts.num_pservers),
        "EDL_ETCD_ENDPOINTS": facts.endpoints,
        "EDL_PREFIX": facts.prefix,
        "EDL_SOCKET": facts.socket or None,
        "EDL_CONTROL": facts.control or None,
        "EDL_PSERVERS_FILE": facts.pservers_file or None,
    }


def _paddle(facts: Facts) -> dict[str, str | None]:
    """What is known, in the words of three generations of Paddle."""
    pserver = facts.role == "pserver"
    hosts = ",".join(split_address(address)[0] for address in facts.pservers) or None
    listed = ",".join(facts.pservers) or None
    known: dict[str, str | None] = {
        # 2017, the Go pservers and their start script.
        "PADDLE_INIT_PSERVERS": hosts,
        # Fluid.
        "PADDLE_TRAINING_ROLE": facts.role.upper(),
        "PADDLE_PSERVERS": hosts,
        "PADDLE_PSERVERS_NUM": None if facts.num_pservers is None else str(facts.num_pservers),
        "PADDLE_PSERVER_EPS": listed,
        # Now.
        "TRAINING_ROLE": facts.role.upper(),
        "PADDLE_PSERVERS_IP_PORT_LIST": listed,
    }
    if facts.num_pservers is not None:
        known["PSERVERS"] = str(facts.num_pservers)
    if facts.num_trainers is not None:  # a flag wins over the environment
        for name in _TRAINER_COUNTS:
            known[name] = str(facts.num_trainers)
    if pserver:
        # A pserver finds its rank by POD_IP:PADDLE_PORT in the list, so both must read as they were registered.
        known |= {
            "PADDLE_PSERVER_ID": str(facts.index),
            "PADDLE_CURRENT_ENDPOINT": facts.address,
            "POD_IP": split_address(facts.address)[0],
            "PADDLE_PORT": split_address(facts.address)[1],
            "PADDLE_INIT_PORT": split_address(facts.address)[1],
        }
    else:
        known |= {"PADDLE_TRAINER_ID": str(facts.index), "PADDLE_INIT_TRAINER_ID": str(facts.index)}
    return known


def _defaults(facts: Facts, base: Mapping[str, str]) -> dict[str, str]:
    trainers = base.get("TRAINERS") or str(facts.index + 1 if facts.role == "trainer" else 1)
    defaults = {
        "POD_NAME": facts.name,
        "POD_IP": facts.host,
        **dict.fromkeys(_TRAINER_COUNTS, trainers),
        "PADDLE_INIT_PORTS_NUM": "1",
        "PADDLE_INIT_PORTS_NUM_FOR_SPARSE": "1",
        "PADDLE_INIT_TRAINER_COUNT": "1",
        "PADDLE_INIT_USE_GPU": "0",
    }
    if facts.role == "trainer":
        # Present Paddle wants a port of a trainer too; the original's programs take the first pserver's for granted.
        port = str(facts.port or "") or (split_address(facts.pservers[0])[1] if facts.pservers else "")
        first = split_address(facts.pservers[0])[1] if facts.pservers else ""
        defaults |= {"PADDLE_PORT": port} if port else {}
        defaults |= {"PADDLE_INIT_PORT": first} if first else {}
    return defaults
