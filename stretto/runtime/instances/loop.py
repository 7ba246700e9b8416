"""An instance on the event loop itself, for batches that take microseconds."""

from __future__ import annotations

from stretto.engines.contract import BatchEngine
from stretto.model.foreign import raised
from stretto.runtime.instances.instance import Post
from stretto.runtime.worker import Command, ForgetQuery, InstanceJob, RunBatch, died, not_started, run_batch
from stretto.sched.engine_events import InstanceReady


class LoopInstance:
    """An instance of an engine that runs its batches on the event loop itself, for batches that take
    microseconds.
    """

    def __init__(self, job: InstanceJob, post: Post) -> None:
        self._job = job
        self._post = post
        self._engine: BatchEngine | None = None
        try:
            self._engine = job.executable(job.config)
        except raised() as error:
            post(not_started(job, error))
        else:
            post(InstanceReady(job.engine, job.instance))

    def send(self, command: Command) -> None:
        """Carry out a command at once."""
        if self._engine is None:
            return
        try:
            match command:
                case RunBatch():
                    self._post(run_batch(self._job, self._engine, command.batch, command.tasks))
                case ForgetQuery(query):
                    self._engine.release(query)
        except raised() as error:
            self._post(died(self._job, error))

    async def close(self) -> None:
        """Close the engine that runs on the event loop, if it was constructed."""
        if self._engine is not None:
            self._engine.close()

    def kill(self) -> None:
        """Do nothing: a batch on the event loop has ended whenever other code runs."""
