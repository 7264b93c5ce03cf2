"""A job: a piece of work that every executor runs. A check is one, and so is a batch of an alignment."""

from typing import Protocol, TypeVar

Result = TypeVar("Result", covariant=True)


class Remote(Protocol):
    """A job as another process gets it: it is pickled there, and what it returns comes back as JSON."""

    def prepare(self) -> None:
        """Load what the job needs: the explainer, the models. This time does not count toward the time limit."""
        ...

    def run(self) -> object:
        """The result of the job in plain values."""
        ...


class Job(Protocol[Result]):
    """A piece of work.

    The result of a job whose explainer refuses or raises says so: `run` raises nothing but the user's Ctrl-C.
    """

    @property
    def explainer(self) -> str:
        """The name of the explainer whose code runs; empty if none does."""
        ...

    @property
    def timeout(self) -> float | None:
        """The user's time limit in seconds; None: there is none."""
        ...

    def run(self) -> Result:
        """Run it in this process, in the sandbox."""
        ...

    def remote(self) -> Remote:
        """The same job for another process."""
        ...

    def result(self, content: object) -> Result:
        """The result that `Remote.run` returned in another process.

        Raises:
            ValueError: it is no result of this job.
        """
        ...

    def failed(self, why: str, printed: str | None = None) -> Result:
        """The result where the job could not be run.

        Args:
            why: the reason, in words.
            printed: a traceback, or the last lines that the process printed before it ended.
        """
        ...

    def not_run(self, why: str) -> Result:
        """The result where the explainer has ended so many processes that the job was not tried."""
        ...

    def left_out(self, why: str) -> Result:
        """The result where the job has ended several workers of a cluster. Other jobs of its explainer go on."""
        ...
