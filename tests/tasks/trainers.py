"""Trainers of one test: clients with a session and a task queue, that work, die and are replaced."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

from edl_agent import EtcdClient
from edl_agent.tasks import Finished, Task, TaskQueue

PATIENCE = 20.0
"""Seconds that no test needs to wait for a task."""


class Trainer:
    """A client with a session, and its queue."""

    def __init__(self, endpoint: str, prefix: str, name: str, **options: Any) -> None:
        self.name = name
        self.client = EtcdClient(endpoint, prefix=prefix, **{"ttl": 5, "dial_timeout": 3.0, **options})
        self.client.open(timeout=10)
        self.queue = TaskQueue(self.client, name)

    def get(self, timeout: float = PATIENCE) -> Task:
        """The next task; there must be one."""
        task = self.queue.get_task(timeout)
        assert isinstance(task, Task), task
        return task

    def work(self, most: int = 10**9) -> list[tuple[int, int]]:
        """Take and finish tasks until all is finished; returns them as (pass, index)."""
        done: list[tuple[int, int]] = []
        while len(done) < most and isinstance(task := self.queue.get_task(PATIENCE), Task):
            self.queue.finish(task)
            done.append((task.pass_number, task.index))
        return done

    def finished(self) -> bool:
        """Whether the queue says that all is finished, without waiting."""
        return isinstance(self.queue.get_task(0), Finished)


class Trainers:
    """Makes the trainers of one test and ends them."""

    def __init__(self, endpoint: str, prefix: str) -> None:
        self.endpoint = endpoint
        self.prefix = prefix
        self.all: list[Trainer] = []
        self.admin = EtcdClient(endpoint, prefix=prefix)

    def add(self, name: str | None = None, **options: Any) -> Trainer:
        """One more."""
        endpoint = options.pop("endpoint", self.endpoint)
        trainer = Trainer(endpoint, self.prefix, name or f"trainer-{len(self.all)}", **options)
        self.all.append(trainer)
        return trainer

    def kill(self, trainer: Trainer) -> None:
        """What etcd sees when a process is killed and its lease runs out: the lease ends, nothing is given back."""
        lease = trainer.client.session.lease_id
        if lease is not None:
            self.admin._leases.revoke(lease, time.monotonic() + 5)

    def stored(self) -> dict[str, bytes]:
        """What is stored, by key without ``/edl/tasks/``."""
        pairs = self.admin.get_prefix("/edl/task")
        return {pair.key.decode().removeprefix("/edl/tasks/"): pair.value for pair in pairs}

    def close(self) -> None:
        """Shut all down, side by side."""
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(lambda one: one.client.shutdown(), self.all))
        self.admin.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Later:
    """A call on a thread of its own."""

    def __init__(self, call: Any, *arguments: Any) -> None:
        self.result: Any = None
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(call, arguments), name="later", daemon=True)
        self._thread.start()

    def _run(self, call: Any, arguments: tuple[Any, ...]) -> None:
        try:
            self.result = call(*arguments)
        except BaseException as error:
            self.error = error

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._thread.is_alive()

    def get(self, timeout: float = 10.0) -> Any:
        """Wait for the end; its result, or its error raised."""
        self._thread.join(timeout)
        assert not self._thread.is_alive(), f"still running after {timeout} s"
        if self.error is not None:
            raise self.error
        return self.result
