"""TrainingJobs on a real API server: throughput, time to the trainer Job under steady arrivals, and rest.

Kubernetes' own controllers are stopped: what is measured is what this controller adds to the requests that have to be
made. The baseline is these very requests, recorded from the controller at work and sent again by threads that do
nothing else, over as many connections. Jobs have no pservers: their trainers wait for nobody.
"""

import itertools
import json
import queue
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import urllib3

from benchmarks.ground import Child, at_once, children, etcd_in_memory, say
from benchmarks.table import Row, ratio, value
from edl_controller.api import crd
from tests.bench.kube_control_plane import KubeControlPlane
from tests.bench.kube_http import KubeHttpClient
from tests.bench.kube_proxy import Call, KubeProxy, kubeconfig_for
from tests.bench.waiting import eventually

NAME = "kube-jobs"
WORKERS = 8
LOADERS = 8
TRAINING_JOBS = "/apis/paddlepaddle.org/v1/namespaces/{}/trainingjobs"
JOBS = "/apis/batch/v1/namespaces/{}/jobs"


def run(quick: bool) -> Iterator[Row]:
    """Rows for throughput, the time to the trainer Job (p50, p99), and rest."""
    count, seconds, resting, rest = (20, 2.0, 10, 3.0) if quick else (2_000, 15.0, 1_000, 60.0)
    with ExitStack() as stack:
        ground = _Ground(stack)
        writes = ground.recorded()
        say(f"a job takes {len(writes)} writes: {', '.join(f'{w.method} {w.resource}' for w in writes)}")
        raw = ground.raw(count, writes)
        ours = ground.ours(count)
        note = f"{len(writes)} writes a job and its creation, {LOADERS + WORKERS} connections; controllers stopped"
        what = f"{count:,} TrainingJobs until all children exist and all is written"
        yield ratio(NAME, what, "jobs/s", raw, ours, must=0.5, moonshot=0.8, higher_is_better=True, note=note)
        yield from ground.arrivals(raw / 2, seconds)
        yield from ground.rest(resting, rest)


@dataclass(frozen=True)
class _Write:
    """A request of the recorded job, whose name and uid are to be replaced."""

    method: str
    resource: str
    path: str
    content_type: str
    body: str


class _Ground:
    def __init__(self, stack: ExitStack) -> None:
        self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        self.plane = stack.enter_context(KubeControlPlane(self.folder / "kube"))
        self.etcd = stack.enter_context(etcd_in_memory()).client_url
        self.plane.client.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd.manifest())
        served = "/apis/paddlepaddle.org/v1/trainingjobs"
        eventually(lambda: self.plane.client.call("GET", served).status == 200, 30)
        self.plane.controller_manager.kill()
        self.plane.scheduler.kill()

    def namespace(self, name: str) -> str:
        self.plane.client.post("/api/v1/namespaces", {"metadata": {"name": name}})
        return name

    @contextmanager
    def controller(self, namespace: str, kubeconfig: Path | None = None) -> Iterator[Child]:
        """The controller of one namespace in a process of its own."""
        source = str(kubeconfig or self.plane.kubeconfig)
        child = Child("kube-controller", source, namespace, self.etcd, str(WORKERS))
        with children(child):
            assert child.hear() == "ready"
            yield child

    def recorded(self) -> list[_Write]:
        """What one job makes the controller write."""
        namespace = self.namespace("recorded")
        with KubeProxy(self.plane.url, self.plane.ca) as proxy:
            source = kubeconfig_for(proxy, self.folder, self.plane.token)
            with self.controller(namespace, source):
                uid = self.plane.client.post(TRAINING_JOBS.format(namespace), _job("recorded"))["metadata"]["uid"]
                eventually(lambda: proxy.writes("jobs"), 30)
                size = -1
                while size != len(proxy.writes()):
                    size = len(proxy.writes())
                    time.sleep(1.0)
            return [_template(call, uid) for call in proxy.writes()]

    def raw(self, count: int, writes: Sequence[_Write]) -> float:
        """Jobs per second when nobody thinks."""
        namespace, names = self.namespace("raw"), itertools.count()
        client = self.plane.client_for(self.plane.token)

        def send() -> None:
            while (number := next(names)) < count:
                job = client.post(TRAINING_JOBS.format(namespace), _job(f"tj-{number}"))
                for write in writes:
                    _send(client, write, job, namespace)

        seconds = at_once([send] * (LOADERS + WORKERS))
        client.close()
        say(f"raw: {count} jobs in {seconds:.1f} s")
        return count / seconds

    def ours(self, count: int) -> float:
        namespace, names = self.namespace("ours"), itertools.count()
        client = self.plane.client_for(self.plane.token)

        def send() -> None:
            while (number := next(names)) < count:
                client.post(TRAINING_JOBS.format(namespace), _job(f"tj-{number}"))

        with self.controller(namespace), _watched(self.plane, namespace) as arrived:
            begin = time.perf_counter()
            at_once([send] * LOADERS)
            for _ in range(count):
                arrived.get(timeout=600)
            children_there = time.perf_counter() - begin
            seconds = self._last_write(client) - begin
        client.close()
        say(f"ours: all children after {children_there:.1f} s")
        say(f"ours: {count} jobs in {seconds:.1f} s")
        return count / seconds

    def _last_write(self, client: KubeHttpClient) -> float:
        """When the last write was made: the version of the store stands still after it."""
        version, since = "", time.perf_counter()
        while time.perf_counter() - since < 1.5:
            now = client.get("/apis/batch/v1/namespaces/default/jobs")["metadata"]["resourceVersion"]
            if now != version:
                version, since = now, time.perf_counter()
            time.sleep(0.05)
        return since

    def arrivals(self, rate: float, seconds: float) -> Iterator[Row]:
        """The time from a job's creation to its trainer Job, as a watcher sees it, while jobs arrive at a rate."""
        namespace = self.namespace("raw-arrivals")
        stop = threading.Event()
        client = self.plane.client_for(self.plane.token)
        thinker = threading.Thread(target=_create_jobs, args=(client, namespace, stop), daemon=True)
        thinker.start()
        raw = self._latencies(namespace, rate, seconds)
        stop.set()
        namespace = self.namespace("our-arrivals")
        with self.controller(namespace) as child:
            ours = self._latencies(namespace, rate, seconds)
            child.tell("cpu")
            note = f"{rate:.0f} jobs/s arrive for {seconds:g} s, half of the raw rate; {child.hear()} s of CPU"
        for what, share, must, moonshot in (("p50", 0.50, 3.0, 1.5), ("p99", 0.99, 5.0, 2.0)):
            yield ratio(
                NAME, f"creation to trainer Job, {what} (raw: watch and create)", "ms", 1e3 * _quantile(raw, share),
                1e3 * _quantile(ours, share), must=must, moonshot=moonshot, note=note,
            )  # fmt: skip

    def _latencies(self, namespace: str, rate: float, seconds: float) -> list[float]:
        count, numbers = max(10, int(rate * seconds)), itertools.count()
        sent: dict[str, float] = {}
        client = self.plane.client_for(self.plane.token)
        begin = time.perf_counter() + 0.5

        def send() -> None:
            while (number := next(numbers)) < count:
                due = begin + number / rate
                time.sleep(max(0.0, due - time.perf_counter()))
                # Open loop: it counts from when it was due, also where the server made the sender late.
                sent[f"tj-{number}-trainer"] = due
                client.post(TRAINING_JOBS.format(namespace), _job(f"tj-{number}"))

        found = []
        with _watched(self.plane, namespace) as arrived:
            at_once([send] * LOADERS)
            for _ in range(count):
                name, when = arrived.get(timeout=600)
                found.append(when - sent[name])
        client.close()
        say(f"{namespace}: {count} jobs, p50 {1e3 * median(found):.1f} ms, p99 {1e3 * _quantile(found, 0.99):.1f} ms")
        return found

    def rest(self, count: int, seconds: float) -> Iterator[Row]:
        """Writes and CPU of a controller whose jobs do nothing."""
        namespace = self.namespace("resting")
        client = self.plane.client_for(self.plane.token)
        numbers = itertools.count()

        def send() -> None:
            while (number := next(numbers)) < count:
                client.post(TRAINING_JOBS.format(namespace), _job(f"tj-{number}"))

        at_once([send] * LOADERS)
        with KubeProxy(self.plane.url, self.plane.ca) as proxy:
            source = kubeconfig_for(proxy, self.folder, self.plane.token)
            with self.controller(namespace, source) as child:
                eventually(lambda: len(proxy.writes("jobs")) == count, 600)
                size = -1
                while size != len(proxy.writes()):
                    size = len(proxy.writes())
                    time.sleep(2.0)
                before, begin = _cpu(child), time.perf_counter()
                time.sleep(seconds)
                used = 100 * (_cpu(child) - before) / (time.perf_counter() - begin)
                written = len(proxy.writes()) - size
        client.close()
        assert written == 0, f"{written} writes at rest"
        note = f"{seconds:g} s with no write; the jobs' etcd is looked at meanwhile"
        yield value(NAME, f"CPU at rest with {count:,} jobs", "% of a core", used, must=0.5, note=note)


def _cpu(child: Child) -> float:
    child.tell("cpu")
    return float(child.hear())


def _job(name: str) -> dict[str, Any]:
    trainer = {"entrypoint": "python t.py", "min-instance": 1, "max-instance": 4}
    spec = {"image": "example.com/digits:1", "fault_tolerant": True, "trainer": trainer}
    kind = {"apiVersion": "paddlepaddle.org/v1", "kind": "TrainingJob"}
    return {**kind, "metadata": {"name": name}, "spec": {**spec, "agent": {"mode": "Launcher"}}}


def _template(call: Call, uid: str) -> _Write:
    body = call.json
    if call.verb == "patch":
        body.get("metadata", {}).pop("resourceVersion", None)
    text = json.dumps(body).replace(uid, "UID").replace("recorded", "JOB")
    path = call.path.replace("/namespaces/recorded", "/namespaces/NS").replace("recorded", "JOB")
    content_type = next((v for k, v in call.headers.items() if k.lower() == "content-type"), "application/json")
    method = {"create": "POST", "patch": "PATCH", "delete": "DELETE", "update": "PUT"}[call.verb]
    return _Write(method, call.resource, path, content_type, text.replace('"namespace": "JOB"', '"namespace": "NS"'))


def _send(client: KubeHttpClient, write: _Write, job: dict[str, Any], namespace: str) -> None:
    name, uid = job["metadata"]["name"], job["metadata"]["uid"]
    path = write.path.replace("NS", namespace).replace("JOB", name)
    body = write.body.replace('"NS"', f'"{namespace}"').replace("UID", uid).replace("JOB", name).encode()
    client.expect(write.method, path, body, content_type=write.content_type)


def _create_jobs(client: KubeHttpClient, namespace: str, stop: threading.Event) -> None:
    """Watch TrainingJobs and create a Job for each: the least that a controller can do, on as many connections."""
    work: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    container = {"name": "trainer", "image": "example.com/digits:1", "command": ["python", "t.py"]}
    pod = {"metadata": {"labels": {"a": "b"}}, "spec": {"restartPolicy": "Never", "containers": [container]}}

    def create() -> None:
        while True:
            meta = work.get()["metadata"]
            owner = {"apiVersion": "paddlepaddle.org/v1", "kind": "TrainingJob", "name": meta["name"]}
            owner |= {"uid": meta["uid"], "controller": True}
            body = {"metadata": {"name": f"{meta['name']}-trainer", "ownerReferences": [owner]}}
            client.post(JOBS.format(namespace), {**body, "spec": {"parallelism": 1, "template": pod}})

    for _ in range(WORKERS):
        threading.Thread(target=create, daemon=True).start()
    with suppress(urllib3.exceptions.HTTPError):  # the end of the API server is its end, too
        for event in client.watch(TRAINING_JOBS.format(namespace), seconds=300):
            if stop.is_set():
                return
            if event["type"] == "ADDED":
                work.put(event["object"])


@contextmanager
def _watched(plane: KubeControlPlane, namespace: str) -> Iterator["queue.SimpleQueue[tuple[str, float]]"]:
    """Names of the Jobs that appear, and when."""
    arrived: queue.SimpleQueue[tuple[str, float]] = queue.SimpleQueue()
    client, begun = plane.client_for(plane.token), threading.Event()

    def follow() -> None:
        version = client.get(JOBS.format(namespace))["metadata"]["resourceVersion"]
        begun.set()
        with suppress(urllib3.exceptions.HTTPError):
            for event in client.watch(f"{JOBS.format(namespace)}?resourceVersion={version}", seconds=600):
                if event["type"] == "ADDED":
                    arrived.put((event["object"]["metadata"]["name"], time.perf_counter()))

    threading.Thread(target=follow, daemon=True).start()
    begun.wait(30)
    yield arrived


def _quantile(values: list[float], share: float) -> float:
    return quantiles(values, n=100, method="inclusive")[round(share * 100) - 1]
