"""``--explainer``, ``--like``, ``--claim`` and ``--isolate``.

``--like=attnlrp`` is for the one explainer that is not built in, ``--like=SPEC=attnlrp`` for ``--explainer=SPEC``.
"""

from collections.abc import Sequence
from functools import partial

from faithcheck.axioms.measure.expectations import held_like
from faithcheck.axioms.traces.process_snapshot import current_namespaces
from faithcheck.claims import claiming
from faithcheck.executors.own_processes import LocalChecks
from faithcheck.executors.process import JobFailed, ProcessEnded
from faithcheck.explainers.protocol import Explainer
from faithcheck.explainers.registry import builtin_explainers, load_explainer
from faithcheck.models.pair import registered_pairs
from faithcheck.options import OptionError
from faithcheck.options.user_modules import loaded


def choose_explainers(specs: Sequence[str], configured: Sequence[Explainer] = ()) -> list[Explainer]:
    """The explainers that the specs name; without specs the configured ones, or all built-in explainers.

    An entry point is loaded only if a spec names it: a run measures the same explainers wherever it runs.
    ``configured`` explainers have settings of this run, and take precedence over built-in ones of the same name.
    """
    by_name = {explainer.name: explainer for explainer in configured}
    if not specs:
        return list((by_name or builtin_explainers()).values())
    if by_name.keys() >= {*specs}:
        return [by_name[spec] for spec in specs]
    registered_pairs()  # loads the code of the models: what is loaded later cannot be seen to be patched
    namespaces = current_namespaces()
    explainers = [by_name.get(spec) or loaded(f"--explainer={spec}", partial(load_explainer, spec)) for spec in specs]
    if patched := namespaces.patched():
        namespaces.restore({})
        own = [spec for spec in specs if spec not in by_name]
        raise OptionError(
            f"--explainer={' --explainer='.join(own)}: the import of a module replaces {', '.join(patched[:3])}, so "
            "that all explainers would explain other models: patch in `attribute`, and undo it there"
        )
    names = [explainer.name for explainer in explainers]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise OptionError(f"two explainers are named {', '.join(twice)}: name each once, and give each its own name")
    return explainers


def hold_like(likes: Sequence[str], specs: Sequence[str], explainers: Sequence[Explainer]) -> list[Explainer]:
    """The explainers of a run, those that ``--like`` names held to a built-in one."""
    held, own = list(explainers), [spec for spec in specs if spec not in builtin_explainers()]
    for like in likes:
        spec, _, name = like.rpartition("=")
        if not own:
            raise OptionError(f"--like={like}: this run has no explainer of your own: name it, as module:Object")
        named = [one for one in own if not spec or one == spec]
        if len(named) != 1:
            raise OptionError(f"--like={like}: which explainer is it about? Write --like={own[0]}={name or 'NAME'}")
        index = list(specs).index(named[0])
        if held[index] is not explainers[index]:
            raise OptionError(f"--like={like}: two of --like are about {specs[index]}: remove one of them")
        try:
            held[index] = held_like(held[index], name)
        except ValueError as error:
            raise OptionError(f"--like={like}: {error}") from error
    return held


def choose_claims(names: Sequence[str], explainers: Sequence[Explainer]) -> list[Explainer]:
    """The explainers of a run, each of which also claims what ``--claim`` names."""
    if names and not explainers:
        raise OptionError(f"--claim={names[0]}: this run names no explainer: add --explainer=SPEC")
    try:
        return [claiming(explainer, names) for explainer in explainers]
    except ValueError as error:
        raise OptionError(f"--claim={' --claim='.join(names)}: {error}") from error


def isolate(executor: LocalChecks, specs: Sequence[str]) -> None:
    """Load each explainer in its own process, before this process loads it, which could end it."""
    for spec in specs or builtin_explainers():
        try:
            executor.isolate(spec)
        except JobFailed as failure:
            choose_explainers([spec])  # says why it cannot be loaded, as without the option
            raise OptionError(
                f"--isolate: --explainer={spec} can be loaded here, and not in a process of its own: {failure}"
            ) from failure
        except ProcessEnded as end:
            raise OptionError(f"--explainer={spec}: while it was loaded, {end}\n{end.printed}".rstrip()) from end
        except OSError as error:
            raise OptionError(f"--isolate: {error}") from error


def refuse_what_ends_a_process(specs: Sequence[str]) -> None:
    """Load each explainer in a process of its own, to see whether that ends the process."""
    if specs:
        with LocalChecks() as executor:
            isolate(executor, specs)
