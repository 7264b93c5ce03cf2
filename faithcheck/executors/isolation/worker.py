"""Until the front doors enter an executor: the errors by their earlier names."""

from faithcheck.executors.process import JobFailed as TaskFailed
from faithcheck.executors.process import ProcessEnded as WorkerEnded

__all__ = ["TaskFailed", "WorkerEnded"]
