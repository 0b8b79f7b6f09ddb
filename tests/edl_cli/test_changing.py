"""submit, scale, suspend, resume and delete on a cluster that is up, with real pods."""

from __future__ import annotations

import time

from edl_controller.api.kinds import PODS
from tests.bench.waiting import eventually
from tests.edl_cli.command import Machine, job


def test_created_configured_unchanged(machine: Machine) -> None:
    one, two = job("sub-one"), job("sub-two")
    path = machine.file(one, two, name="two.yaml")
    assert machine.edl("submit", path).stdout == "trainingjob/sub-one created\ntrainingjob/sub-two created\n"
    changed = machine.file(one, job("sub-two", most=2), name="changed.yaml")
    done = machine.edl("submit", changed)
    assert done.stdout == "trainingjob/sub-one unchanged\ntrainingjob/sub-two configured\n"
    done = machine.edl("delete", "-f", path, "-f", changed)
    assert done.stdout == "trainingjob/sub-one deleted\ntrainingjob/sub-two deleted\n"
    assert not machine.pods_of("sub-one")


def test_nothing_is_submitted_when_one_of_them_has_a_fault(machine: Machine) -> None:
    done = machine.edl("submit", machine.file(job("half"), job("half-bad", least=3, most=1)), status=2)
    assert "document 2: spec.trainer.max-instance" in done.stderr
    assert machine.edl("get", "tj", "half", status=1).stdout == ""


def test_waiting_tells_how_each_ended(machine: Machine) -> None:
    good, bad = job("ends-well", trainer=["true"]), job("ends-badly", trainer=["false"], backoffLimit=0)
    done = machine.edl("submit", "--wait", machine.file(good, bad), status=6)
    assert "trainingjob/ends-well succeeded: " in done.stdout
    assert "trainingjob/ends-badly failed: " in done.stdout
    assert "trainingjob/ends-well succeeded" in machine.edl("submit", "--wait", machine.file(good)).stdout
    late = machine.edl("submit", "--wait", "--timeout", "0.5", machine.file(job("never-ends")), status=3)
    assert "trainingjob 'never-ends' has not ended in time" in late.stderr
    machine.edl("delete", "never-ends")


def test_another_number_of_pservers_is_refused_with_the_reason(machine: Machine) -> None:
    machine.submit(job("fixed", pservers=1))
    machine.until_phase("fixed", "running")
    done = machine.edl("submit", machine.file(job("fixed", pservers=2)), status=5)
    assert "runs with 1 pservers and cannot go on with 2" in done.stderr
    assert machine.job("fixed").spec.pserver.min_instance == 1
    machine.edl("delete", "fixed")


def test_bounds_move_the_trainers_and_are_checked(machine: Machine) -> None:
    machine.submit(job("grows"))
    machine.until_phase("grows", "running")
    assert machine.edl("scale", "grows", "--to", "3").stdout == "trainingjob/grows scaled to 3..3 trainers\n"
    eventually(lambda: machine.job("grows").status.trainers == 3, 40, "three trainers", interval=0.3)
    assert machine.edl("scale", "grows", "--to", "3").stdout == "trainingjob/grows unchanged: 3..3 trainers\n"
    done = machine.edl("scale", "grows", "--min", "4", status=2)
    assert done.stderr == "Error: spec.trainer.max-instance: it is less than min-instance, 4\n"
    assert "500000 is not within 0..10000" in machine.edl("scale", "grows", "--max", "500000", status=2).stderr
    machine.edl("scale", "grows", "--to", "1")
    eventually(lambda: machine.job("grows").status.trainers == 1, 40, "one trainer", interval=0.3)
    assert "Fewer than the minimum" in machine.edl("describe", "grows").stdout
    machine.edl("delete", "grows")


def test_a_suspended_job_has_no_pods_and_a_resumed_one_runs(machine: Machine) -> None:
    machine.submit(job("rests", pservers=1))
    machine.until_phase("rests", "running")
    assert machine.edl("suspend", "rests").stdout == "trainingjob/rests suspended\n"
    assert machine.edl("suspend", "rests").stdout == "trainingjob/rests unchanged\n"
    eventually(lambda: not machine.pods_of("rests"), 30, "end of its pods", interval=0.3)
    assert machine.edl("get", "tj", "rests", "-o", "wide").stdout.splitlines()[1].split()[1] == "suspended"
    assert machine.edl("resume", "tj/rests").stdout == "trainingjob/rests resumed\n"
    machine.until_phase("rests", "running")
    machine.edl("delete", "rests")


def test_a_killed_pserver_is_named_and_the_job_runs_on(machine: Machine) -> None:
    machine.submit(job("hurt", pservers=1))
    machine.until_phase("hurt", "running")
    watch = machine.start("get", "tj", "hurt", "-w", "-o", "wide")
    assert watch.stdout is not None
    assert [watch.stdout.readline().split()[0] for _ in range(2)] == ["NAME", "hurt"]
    (pod,) = [one for one in machine.pods_of("hurt") if "-pserver-" in one]
    machine.cluster.delete(PODS, "default", pod)
    lines = [watch.stdout.readline()]
    while "PserversMissing" not in lines[-1]:
        lines.append(watch.stdout.readline())
    while not ("1/1       1/1" in lines[-1] and "Missing" not in lines[-1]):
        lines.append(watch.stdout.readline())
    watch.terminate()
    watch.communicate(timeout=10)
    assert {line.split()[1] for line in lines} == {"running"}
    machine.edl("delete", "hurt")


def test_what_a_node_has_to_say_is_an_event(machine: Machine) -> None:
    machine.submit(job("nowhere", trainer=["no-such-program"]))

    def told() -> bool:
        return "no-such-program" in machine.edl("describe", "nowhere").stdout.partition("\nEvents\n")[2]

    eventually(told, 40, "the event Failed", interval=0.3)
    machine.edl("delete", "nowhere")


def test_deletion_takes_the_pods_and_names_what_is_not_there(machine: Machine) -> None:
    machine.submit(job("goes", pservers=1), job("goes-too"))
    eventually(lambda: len(machine.pods_of("goes")) == 2, 30, "its pods", interval=0.3)
    done = machine.edl("delete", "nobody", "tj/goes", "goes-too", status=1)
    assert done.stdout == "trainingjob/goes deleted\ntrainingjob/goes-too deleted\n"
    assert "no trainingjob 'nobody'" in done.stderr
    assert not machine.pods_of("goes")


def test_all_and_names_do_not_go_together_and_delete_nothing(machine: Machine) -> None:
    path = machine.file(job("kept", trainer=["true"]))
    machine.edl("submit", "-n", "apart", path)
    for arguments in (("--all", "kept"), ("--all", "nobody"), ("--all", "-f", path), ("kept", "--all")):
        done = machine.edl("delete", "-n", "apart", *arguments, status=2)
        assert "--all and names (or -f FILE) do not go together: nothing was deleted" in done.stderr
    assert machine.edl("get", "tj", "-n", "apart", "-o", "name").stdout == "trainingjob/kept\n"
    machine.edl("delete", "-n", "apart", "--all")


def test_what_is_printed_can_be_submitted_again(machine: Machine) -> None:
    machine.edl("submit", "-n", "printed", machine.file(job("one", trainer=["true"]), job("two", trainer=["true"])))
    for form in ("yaml", "json"):
        text = machine.edl("get", "tj", "-n", "printed", "-o", form).stdout
        done = machine.edl("submit", "-", stdin=text).stdout
        assert done == "trainingjob/one unchanged\ntrainingjob/two unchanged\n"
    machine.edl("delete", "-n", "printed", "--all")


def test_deletion_without_waiting(machine: Machine) -> None:
    machine.submit(job("quick", pservers=1))
    began = time.monotonic()
    machine.edl("delete", "--no-wait", "quick")
    assert time.monotonic() - began < 5
    eventually(lambda: not machine.pods_of("quick"), 30, "end of its pods", interval=0.3)


def test_all_of_a_namespace(machine: Machine) -> None:
    path = machine.file(job("first", trainer=["true"]), job("second", trainer=["true"]))
    machine.edl("submit", "-n", "team", path)
    assert machine.edl("delete", "-n", "team", "--all").stdout.count("deleted") == 2
    empty = machine.edl("delete", "-n", "team", "--all")
    assert (empty.stdout, empty.stderr) == ("", "no trainingjobs found in namespace team\n")
