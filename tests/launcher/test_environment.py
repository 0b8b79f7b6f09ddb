"""The command's environment, as a table; pure."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from edl_agent.launcher.environment import Facts, environment, split_address, tf_config

PSERVER = Facts(
    role="pserver",
    index=1,
    epoch=17,
    name="ps-1",
    address="10.0.0.2:7164",
    host="10.0.0.2",
    port=7164,
    pservers=("10.0.0.1:7164", "10.0.0.2:7164"),
    num_pservers=2,
    endpoints="http://etcd:2379",
    prefix="/job",
)
TRAINER = replace(PSERVER, role="trainer", index=3, epoch=30, name="tr-3", address="tr-3", host="10.0.0.9", port=None)


def test_a_pserver_gets_what_the_contract_names() -> None:
    found = environment(PSERVER, {})
    assert {name: value for name, value in found.items() if name.startswith("EDL_")} == {
        "EDL_ROLE": "pserver",
        "EDL_INDEX": "1",
        "EDL_EPOCH": "17",
        "EDL_NAME": "ps-1",
        "EDL_PSERVERS": "10.0.0.1:7164,10.0.0.2:7164",
        "EDL_NUM_PSERVERS": "2",
        "EDL_ETCD_ENDPOINTS": "http://etcd:2379",
        "EDL_PREFIX": "/job",
    }


@pytest.mark.parametrize(
    ("name", "pserver", "trainer"),
    [
        # Present Paddle: a pserver finds its rank by POD_IP:PADDLE_PORT in the list.
        ("TRAINING_ROLE", "PSERVER", "TRAINER"),
        ("PADDLE_PSERVERS_IP_PORT_LIST", "10.0.0.1:7164,10.0.0.2:7164", "10.0.0.1:7164,10.0.0.2:7164"),
        ("PADDLE_TRAINERS_NUM", "1", "4"),
        ("PADDLE_TRAINER_ID", None, "3"),
        ("POD_IP", "10.0.0.2", "10.0.0.9"),
        ("PADDLE_PORT", "7164", "7164"),
        # Fluid.
        ("PADDLE_TRAINING_ROLE", "PSERVER", "TRAINER"),
        ("PADDLE_PSERVERS_NUM", "2", "2"),
        ("PADDLE_PSERVERS", "10.0.0.1,10.0.0.2", "10.0.0.1,10.0.0.2"),
        ("PADDLE_PSERVER_EPS", "10.0.0.1:7164,10.0.0.2:7164", "10.0.0.1:7164,10.0.0.2:7164"),
        ("PADDLE_PSERVER_ID", "1", None),
        ("PADDLE_CURRENT_ENDPOINT", "10.0.0.2:7164", None),
        # 2017.
        ("PADDLE_INIT_PSERVERS", "10.0.0.1,10.0.0.2", "10.0.0.1,10.0.0.2"),
        ("PADDLE_INIT_TRAINER_ID", None, "3"),
        ("PADDLE_INIT_PORT", "7164", "7164"),
        ("PADDLE_INIT_NUM_GRADIENT_SERVERS", "1", "4"),
        ("PADDLE_INIT_PORTS_NUM", "1", "1"),
        ("PSERVERS", "2", "2"),
        ("TRAINERS", "1", "4"),
        ("POD_NAME", "ps-1", "tr-3"),
        ("TF_CONFIG", None, None),
    ],
)
def test_each_variable(name: str, pserver: str | None, trainer: str | None) -> None:
    assert environment(PSERVER, {}).get(name) == pserver
    assert environment(TRAINER, {}).get(name) == trainer


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("HOME", "/home/u", "/home/u"),
        # Knowledge replaces what was there.
        ("EDL_INDEX", "0", "3"),
        ("PADDLE_TRAINER_ID", "0", "3"),
        ("PADDLE_PSERVERS_IP_PORT_LIST", "old:1", "10.0.0.1:7164,10.0.0.2:7164"),
        ("PSERVERS", "9", "2"),
        ("TRAINING_ROLE", "PSERVER", "TRAINER"),
        # Defaults give way.
        ("PADDLE_TRAINERS_NUM", "8", "8"),
        ("POD_IP", "10.1.1.1", "10.1.1.1"),
        ("POD_NAME", "pod", "pod"),
        ("PADDLE_PORT", "9000", "9000"),
        ("PADDLE_INIT_TRAINER_COUNT", "4", "4"),
        ("PADDLE_INIT_NUM_GRADIENT_SERVERS", "8", "8"),
        # Empty is as good as not set.
        ("PADDLE_TRAINERS_NUM", "", "4"),
        ("TF_CONFIG", "mine", "mine"),
    ],
)
def test_who_wins(name: str, given: str, expected: str) -> None:
    assert environment(TRAINER, {name: given})[name] == expected


def test_a_flag_for_the_number_of_trainers_wins_over_the_environment() -> None:
    found = environment(replace(TRAINER, num_trainers=5), {"PADDLE_TRAINERS_NUM": "8"})
    assert (found["PADDLE_TRAINERS_NUM"], found["TRAINERS"]) == ("5", "5")


def test_the_controllers_count_of_trainers_is_taken() -> None:
    assert environment(TRAINER, {"TRAINERS": "6"})["PADDLE_TRAINERS_NUM"] == "6"


def test_an_incomplete_list_leaves_no_list_behind() -> None:
    old = {"EDL_PSERVERS": "a:1,b:2", "PADDLE_PSERVERS_IP_PORT_LIST": "a:1,b:2", "PADDLE_PSERVER_EPS": "a:1"}
    found = environment(replace(PSERVER, pservers=()), old)
    assert not {"EDL_PSERVERS", "PADDLE_PSERVERS_IP_PORT_LIST", "PADDLE_PSERVER_EPS", "PADDLE_PSERVERS"} & set(found)
    assert found["EDL_NUM_PSERVERS"] == "2"


def test_the_launchers_own_environment_is_not_changed() -> None:
    base = {"EDL_INDEX": "9"}
    environment(PSERVER, base)
    assert base == {"EDL_INDEX": "9"}


def test_tf_config() -> None:
    facts = replace(TRAINER, index=1, tf_config=True, trainers=((0, "tr-0:1"), (2, "tr-2:1")), address="tr-1:1")
    found = json.loads(environment(facts, {"TF_CONFIG": "old"})["TF_CONFIG"])
    assert found == {
        "cluster": {"ps": ["10.0.0.1:7164", "10.0.0.2:7164"], "worker": ["tr-0:1", "tr-1:1", "tr-2:1"]},
        "task": {"type": "worker", "index": 1},
    }
    sparse = tf_config(replace(facts, index=5))["cluster"]
    assert isinstance(sparse, dict)
    assert sparse["worker"] == {"0": "tr-0:1", "2": "tr-2:1", "5": "tr-1:1"}
    assert tf_config(PSERVER)["task"] == {"type": "ps", "index": 1}


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [
        ("10.0.0.1:7164", "10.0.0.1", "7164"),
        ("[fd00::1]:7164", "fd00::1", "7164"),
        ("name.svc:1", "name.svc", "1"),
        ("name", "name", ""),
        ("fd00::1", "fd00::1", ""),
    ],
)
def test_addresses(address: str, host: str, port: str) -> None:
    assert split_address(address) == (host, port)
