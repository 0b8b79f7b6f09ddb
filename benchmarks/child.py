"""The benchmarks' own processes. Modes:

* ``grpc``, ``import``: import that and nothing else;
* ``registered URL PREFIX PORT``: an idle agent that holds a slot;
* ``keepalive URL``: the least that keeps a lease: one stream, one message each third of the TTL;
* ``sidecar URL SOCKET``: a sidecar;  ``empty-service SOCKET``: a gRPC service of its methods that do nothing;
* ``kube-controller KUBECONFIG NAMESPACE ETCD WORKERS``: a controller; says its CPU seconds for each line it is sent;
* ``starter URL PREFIX INDEX COUNT``: one of many that are released together, first raw, then through the product.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any


def main(mode: str, *arguments: str) -> None:
    """Run a mode until standard input ends."""
    MODES[mode](*arguments)
    sys.stdin.read()


def import_grpc() -> None:
    import grpc  # noqa: F401

    print("ready")


def import_edl_agent() -> None:
    import edl_agent  # noqa: F401

    print("ready")


def kube_controller(kubeconfig: str, namespace: str, etcd: str, workers: str) -> None:
    from edl_controller.cluster.kube import KubeCluster
    from edl_controller.cluster.kube import kubeconfig as credentials
    from edl_controller.controller import Controller
    from edl_controller.core.job_settings import JobSettings

    # No agents take part: that they are silent is no news here, and is not to be written about.
    settings = JobSettings(etcd_endpoints=(etcd,), agents_stale=1e6)
    cluster, stop = KubeCluster(credentials(kubeconfig)), threading.Event()
    controller = Controller(
        cluster, settings=settings, autoscale=False, workers=int(workers), namespaces=[namespace], resync=0
    )
    thread = threading.Thread(target=controller.run, args=(stop,))
    thread.start()
    while not controller.ready:
        time.sleep(0.02)
    print("ready")
    for _ in sys.stdin:
        print(time.process_time())
    stop.set()
    thread.join(30)
    cluster.close()


def registered(url: str, prefix: str, port: str) -> None:
    from edl_agent import EtcdClient

    with EtcdClient(url, 1, prefix=prefix, host="127.0.0.1") as client:
        client.register(int(port), timeout=30.0)
        print("ready")
        sys.stdin.read()


def keepalive(url: str) -> None:
    import grpc

    from edl_agent.etcd import wire

    ttl = 10
    with grpc.insecure_channel(url.removeprefix("http://")) as channel:
        grant = wire.LeaseGrantRequest(ttl=ttl).SerializeToString()
        answer: Any = channel.unary_unary(wire.LEASE_GRANT.path)(grant, 10.0)
        lease_id = wire.LEASE_GRANT.answer.FromString(answer).id
        ended = threading.Event()

        def requests() -> Iterator[bytes]:
            while True:
                yield wire.LeaseKeepAliveRequest(id=lease_id).SerializeToString()
                if ended.wait(ttl / 3):
                    return

        stream: Any = channel.stream_stream(wire.KEEPALIVE_PATH)
        call = stream(requests())
        reader = threading.Thread(target=lambda: [None for _ in call], daemon=True)
        reader.start()
        print("ready")
        sys.stdin.read()
        ended.set()
        reader.join()


def starter(url: str, prefix: str, index: str, count: str) -> None:
    import grpc

    from edl_agent import EtcdClient
    from edl_agent.etcd import kv, wire

    def raw() -> None:
        with grpc.insecure_channel(url.removeprefix("http://")) as channel:
            grant = wire.LeaseGrantRequest(ttl=60).SerializeToString()
            answer: Any = channel.unary_unary(wire.LEASE_GRANT.path)(grant, 60.0)
            lease_id = wire.LEASE_GRANT.answer.FromString(answer).id
            key = f"{prefix}-raw/ps/{index}".encode()
            put = kv.put_op(key, f"127.0.0.1:{10_000 + int(index)}".encode(), lease_id)
            create = wire.TxnRequest(compare=[kv.absent(key)], success=[put]).SerializeToString()
            answer = channel.unary_unary(wire.TXN.path)(create, 60.0)
            assert wire.TXN.answer.FromString(answer).succeeded

    print("ready")
    sys.stdin.readline()
    raw()
    print(time.monotonic())
    sys.stdin.readline()
    with EtcdClient(url, int(count), prefix=prefix, host="127.0.0.1") as client:
        held = client.register(10_000 + int(index), timeout=120.0)
        print(time.monotonic(), held)
        sys.stdin.read()


def sidecar(url: str, socket: str) -> None:
    from edl_agent import EtcdClient
    from edl_agent.sidecar.server import Sidecar, SidecarOptions

    def make_client(num_pservers: int | None, host: str | None) -> EtcdClient:
        return EtcdClient(url, num_pservers or 1, prefix="/bench", host=host or "127.0.0.1")

    with Sidecar(make_client, SidecarOptions(socket)):
        print("ready")
        sys.stdin.read()


def empty_service(socket: str) -> None:
    """The least that a gRPC service in Python does: the same messages, and handlers with nothing in them."""
    from concurrent.futures import ThreadPoolExecutor

    import grpc

    from edl_agent.sidecar import wire

    handlers = {}
    for method in wire.service(wire.AGENT).methods:
        kind = wire.class_of(method.output_type)
        handlers[method.name] = grpc.unary_unary_rpc_method_handler(
            lambda request, context, kind=kind: kind(),
            wire.class_of(method.input_type).FromString,
            kind.SerializeToString,
        )
    server = grpc.server(ThreadPoolExecutor(64))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(wire.AGENT, handlers),))
    server.add_insecure_port(f"unix:{socket}")
    server.start()
    print("ready")
    sys.stdin.read()
    server.stop(0).wait()


MODES: dict[str, Callable[..., None]] = {
    "grpc": import_grpc,
    "import": import_edl_agent,
    "registered": registered,
    "keepalive": keepalive,
    "starter": starter,
    "kube-controller": kube_controller,
    "sidecar": sidecar,
    "empty-service": empty_service,
}

if __name__ == "__main__":
    main(*sys.argv[1:])
