"""A pserver that adds up numbers and a trainer that sends them (at least once), with a sidecar (`EDL_SOCKET`) as agent.

Of the package only the compiled protocol (protos/edl/agent/v1/agent.proto) is used: a program in another language
generates its client from that file and makes the same calls, which docs/sidecar.md explains.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
import socketserver
import threading
import time
from typing import Any

import grpc

from edl_agent.sidecar import wire


class Agent:
    """The calls, by name; and, by two streams, the session as it is now and whether the program is asked to go."""

    def __init__(self, path: str) -> None:
        self.channel = grpc.insecure_channel(f"unix:{path}")
        self.drain = threading.Event()
        self.call("GetSession", timeout=60.0)  # the sidecar may have been started, but not listen yet
        life = self.call("Attach", timeout=None, program="examples/sidecar")
        self.attachment = (first := next(life)).attachment
        self.session = first.session
        for stream in (life, self.call("WatchDrain", timeout=None)):
            threading.Thread(target=self._read, args=(stream,), daemon=True).start()
        # A call in a signal's handler could wait for the one that it interrupts.
        start = {"name": "StartDrain", "reason": "SIGTERM", "seconds": 20.0}
        signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=self.call, kwargs=start, daemon=True).start())

    def call(self, name: str, timeout: float | None = 10.0, **fields: Any) -> Any:
        """One call; a stream is an iterator. Raises grpc.RpcError."""
        method = wire.service(wire.AGENT).methods_by_name[name]
        make: Any = self.channel.unary_stream if method.server_streaming else self.channel.unary_unary
        answer = wire.class_of(method.output_type).FromString
        stub = make(f"/{wire.AGENT}/{name}", lambda request: request.SerializeToString(), answer)
        return stub(wire.class_of(method.input_type)(**fields), timeout=timeout, wait_for_ready=True)

    def own(self, name: str, timeout: float | None = 10.0, **fields: Any) -> Any:
        """A call that changes something: it carries the attachment."""
        return self.call(name, timeout, attachment=self.attachment, **fields)

    def serves(self, epoch: int) -> Any:
        """Whether this is the slot's holder in that epoch, now: also a silent sidecar's word ends at its deadline."""
        now = self.session
        return now.HasField("index") and now.epoch == epoch and time.monotonic() < now.deadline_monotonic

    def leave(self) -> None:
        """Answer the drain, and release the slot at once."""
        with contextlib.suppress(grpc.RpcError):  # the sidecar may be what went
            self.own("AcknowledgeDrain", timeout=2.0)
            self.own("Shutdown", timeout=2.0)

    def _read(self, stream: Any) -> None:
        with contextlib.suppress(grpc.RpcError):
            for answer in stream:
                if "session" in answer.DESCRIPTOR.fields_by_name:
                    self.session = answer.session
                elif answer.drain.state != wire.enum_number("DrainState", "DRAIN_STATE_NONE"):
                    break
        self.drain.set()  # asked to go; or the sidecar is gone, without which there is nothing to be done here


def pserver(options: argparse.Namespace) -> int:
    """Hold a slot and add up what trainers send in its epoch, until asked to go."""
    total, lock = 0, threading.Lock()

    class Addition(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            nonlocal total
            epoch, number = map(int, self.rfile.readline(64).split())
            with lock:
                serves = agent.serves(epoch)
                total += number if serves else 0
            self.wfile.write(b"%d\n" % total if serves else b"not I\n")

    where = os.environ.get("POD_IP", "127.0.0.1"), options.port
    with socketserver.ThreadingTCPServer(where, Addition) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        agent = Agent(options.socket)
        session = agent.own("Register", timeout=600.0, role="ROLE_PSERVER", port=server.server_address[1]).session
        print(f"pserver {session.index} epoch {session.epoch} at {session.address}", flush=True)
        while not agent.drain.wait(1.0):
            agent.own("Report", samples=total)
        server.shutdown()
    agent.leave()
    print(f"left with a total of {total}", flush=True)
    return 0


def trainer(options: argparse.Namespace) -> int:
    """Send each task's number to the pserver that it belongs to, until all tasks are finished."""
    agent = Agent(options.socket)
    agent.own("Register", timeout=600.0, role="ROLE_TRAINER")
    agent.own("SetDataset", tasks=options.tasks, passes=1)
    done = 0
    while not agent.drain.is_set():
        try:
            taken = agent.own("TakeTask", timeout=2.0, worker="main")
        except grpc.RpcError:  # none was free, or etcd is away
            agent.drain.wait(0.2)
            continue
        if not taken.HasField("task"):
            agent.own("Shutdown")
            print(f"all {options.tasks} tasks are finished, {done} of them here", flush=True)
            return 0
        if send(agent, taken.task.index):
            agent.own("FinishTask", worker="main", task_id=taken.task.id)
            done += 1
            agent.own("Report", step=done)
    agent.leave()  # the others get the task in hand
    print(f"asked to go after {done} tasks", flush=True)
    return 3  # not all was done: the Job starts another one


def send(agent: Agent, number: int) -> bool:
    """Whether the number's pserver has added it; a list is asked for anew each time, so that a new holder is found."""
    with contextlib.suppress(OSError, grpc.RpcError):
        found = agent.call("GetPservers", timeout=5.0, wait_complete=True).pservers.pservers
        target = found[number % len(found)]
        host, port = target.address.rsplit(":", 1)
        with socket.create_connection((host, int(port)), 5.0) as connection:
            connection.sendall(b"%d %d\n" % (target.epoch, number))
            return connection.makefile("rb").readline(64).strip().isdigit()
    return False


def main() -> int:
    """Run the role that the command line names; its exit status is not 0 where work is left."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", choices=("pserver", "trainer"))
    parser.add_argument("--socket", default=os.environ.get("EDL_SOCKET"), required="EDL_SOCKET" not in os.environ)
    parser.add_argument("--port", type=int, default=7164)
    parser.add_argument("--tasks", type=int, default=100)
    options = parser.parse_args()
    return {"pserver": pserver, "trainer": trainer}[options.role](options)


if __name__ == "__main__":
    raise SystemExit(main())
