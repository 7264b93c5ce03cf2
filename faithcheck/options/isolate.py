"""``--isolate``: each explainer's checks in a process of their own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from faithcheck.executors.isolation.isolated_checks import Isolation
from faithcheck.executors.isolation.worker import TaskFailed, WorkerEnded
from faithcheck.explainers.registry import builtin_explainers
from faithcheck.options import OptionError
from faithcheck.options.explainers import choose_explainers


def choose_isolation(isolate: bool, specs: Sequence[str], checkpoint: Sequence[str] = ()) -> Isolation | None:
    """The processes of the explainers, each of which has loaded its explainer; None without the option.

    Call it before an explainer is loaded in this process, which loading could end.

    Args:
        isolate: the option.
        specs: those of ``--explainer``; without any, all built-in explainers.
        checkpoint: the paths of ``--checkpoint``.

    Raises:
        OptionError: an explainer cannot be loaded, or loading it ends its process; or this system has no such
            processes.
    """
    if not isolate:
        return None
    isolation = Isolation(list(checkpoint))
    for spec in specs or builtin_explainers():
        with _refusing(spec):
            isolation.add(spec)
    return isolation


def refuse_what_ends_a_process(isolate: bool, specs: Sequence[str]) -> None:
    """With the option, load each explainer in a process of its own first, to see whether that ends the process.

    Raises:
        OptionError: see `choose_isolation`.
    """
    isolation = Isolation()
    for spec in specs if isolate else ():
        with _refusing(spec):
            isolation.add(spec)
    isolation.close()


@contextmanager
def _refusing(spec: str) -> Iterator[None]:
    try:
        yield
    except TaskFailed as failure:
        choose_explainers([spec])  # says why it cannot be loaded, as without the option
        raise OptionError(
            f"--isolate: --explainer={spec} can be loaded here, and not in a process of its own: {failure}"
        ) from failure
    except WorkerEnded as end:
        raise OptionError(f"--explainer={spec}: while it was loaded, {end}\n{end.log}".rstrip()) from end
    except OSError as error:
        raise OptionError(f"--isolate: {error}") from error
