"""The task RPCs: one `TaskQueue` for each worker of the attached program."""

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

from edl_agent import errors
from edl_agent.client import EtcdClient
from edl_agent.sidecar import answers, wire
from edl_agent.sidecar.calls import LONGEST, Call, Places
from edl_agent.sidecar.life import Life, Worker
from edl_agent.sidecar.statuses import Refusal
from edl_agent.tasks import Finished, Task, TaskQueue

_SLICE = 1.0
"""Seconds after which a waiting call looks whether anybody still waits for it."""


class TaskService:
    """The part of the service that is about tasks."""

    def __init__(self, client: EtcdClient, life: Life, places: Places) -> None:
        self._client = client
        self._life = life
        self._places = places
        self._looking = threading.Lock()
        self._onlooker: TaskQueue | None = None

    def set_dataset(self, request: Any, call: Call) -> Any:
        """See `TaskQueue.set_dataset`."""
        worker = self._life.attached(request.attachment).worker("")
        if bool(request.tasks) == bool(request.specs):
            raise errors.ConfigurationError("give either tasks or specs")
        try:
            specs = [json.loads(text) for text in request.specs]
        except ValueError:
            raise errors.ConfigurationError("each spec must be a JSON value") from None
        more: dict[str, Any] = {}
        if request.HasField("max_failures"):
            more["max_failures"] = request.max_failures
        if request.HasField("timeout"):
            more["timeout"] = request.timeout
        worker.queue.set_dataset(
            specs or request.tasks, request.passes or 1, chunk_size=request.chunk_size or None, **more
        )
        return wire.message("SetDatasetResponse")()

    def take_task(self, request: Any, call: Call) -> Any:
        """The next task, or the one in hand."""
        worker = self._worker(request)
        with self._places.one(), self._turn(worker, call):
            held = worker.in_hand
            found: Task | Finished
            if held is not None:
                try:
                    # The answer to the call that took it may have been lost: the same again, if it still is ours.
                    worker.queue.renew(held[1])
                    return wire.message("TakeTaskResponse")(task=answers.task(*held))
                except errors.TaskLost:
                    worker.let_go()
            found = self._wait(worker, call)
            if isinstance(found, Finished):
                return wire.message("TakeTaskResponse")(passes_finished=found.passes)
            return wire.message("TakeTaskResponse")(task=answers.task(worker.hold(found), found))

    def renew_task(self, request: Any, call: Call) -> Any:
        """See `TaskQueue.renew`."""
        self._settle(request, call, lambda queue, task: queue.renew(task), keeps=True)
        return wire.message("RenewTaskResponse")()

    def finish_task(self, request: Any, call: Call) -> Any:
        """See `TaskQueue.finish`; once more says the same."""
        self._settle(request, call, lambda queue, task: queue.finish(task), done=True)
        return wire.message("FinishTaskResponse")()

    def fail_task(self, request: Any, call: Call) -> Any:
        """See `TaskQueue.fail`."""
        self._settle(request, call, lambda queue, task: queue.fail(task, request.reason))
        return wire.message("FailTaskResponse")()

    def give_back_task(self, request: Any, call: Call) -> Any:
        """See `TaskQueue.give_back`."""
        self._settle(request, call, lambda queue, task: queue.give_back(task))
        return wire.message("GiveBackTaskResponse")()

    def get_progress(self, request: Any, call: Call) -> Any:
        """See `TaskQueue.progress`. Needs no attachment."""
        with self._looking:
            if self._onlooker is None:
                self._onlooker = TaskQueue(self._client)
            progress = self._onlooker.progress()
        answer = wire.message("GetProgressResponse")(
            passes=progress.passes, held=progress.held, history=[answers.counts(one) for one in progress.history]
        )
        if progress.current is not None:
            answer.current.CopyFrom(answers.counts(progress.current))
        return answer

    def should_save_model(self, request: Any, call: Call) -> Any:
        """See `TaskQueue.should_save_model`."""
        worker = self._life.attached(request.attachment).worker("")
        interval = request.interval if request.HasField("interval") else None
        return wire.message("ShouldSaveModelResponse")(save=worker.queue.should_save_model(interval))

    # --- inside ---

    def _worker(self, request: Any) -> Worker:
        return self._life.attached(request.attachment).worker(request.worker)

    def _settle(
        self,
        request: Any,
        call: Call,
        step: Callable[[TaskQueue, Task], None],
        *,
        keeps: bool = False,
        done: bool = False,
    ) -> None:
        worker = self._worker(request)
        with self._turn(worker, call):
            if done and worker.was_finished(request.task_id):
                return
            task = worker.task(request.task_id)
            try:
                step(worker.queue, task)
            except errors.TaskLost:
                worker.let_go()
                raise
            if not keeps:
                worker.let_go(done)

    @contextlib.contextmanager
    def _turn(self, worker: Worker, call: Call) -> Iterator[None]:
        """One call of a worker at a time."""
        if not worker.lock.acquire(timeout=call.seconds()):
            raise Refusal("TOO_MANY_CALLS", "another call of this worker is under way")
        try:
            yield
        finally:
            worker.lock.release()

    def _wait(self, worker: Worker, call: Call) -> Task | Finished:
        clock = self._client._clock
        end = clock.monotonic() + call.seconds(LONGEST)
        while True:
            left = end - clock.monotonic()
            try:
                found = worker.queue.get_task(max(0.0, min(_SLICE, left)))
            except errors.DeadlineExceeded:
                if left <= _SLICE or not call.alive:
                    raise
                continue
            if isinstance(found, Task) and not call.alive:
                worker.queue.give_back(found)
                raise errors.DeadlineExceeded("nobody waits for the task any more")
            return found

    @staticmethod
    def _in_background(work: Callable[[], object]) -> None:
        threading.Thread(target=work, name="edl-sidecar-release", daemon=True).start()
