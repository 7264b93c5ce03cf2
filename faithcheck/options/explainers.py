"""``--explainer``: the explainers that a run checks, and where each comes from."""

from __future__ import annotations

from collections.abc import Sequence

from faithcheck.axioms.traces.process_snapshot import current_namespaces
from faithcheck.explainers.protocol import Explainer
from faithcheck.explainers.registry import builtin_explainers, load_explainer, origin
from faithcheck.models.pair import registered_pairs
from faithcheck.options import OptionError
from faithcheck.options.loading import loaded


def choose_explainers(specs: Sequence[str]) -> list[Explainer]:
    """The explainers that the specs name, each as `load_explainer` takes it; without specs all built-in explainers.

    An explainer that another package offers as an entry point is loaded only if a spec names it: a run measures the
    same explainers wherever it runs.

    Raises:
        OptionError: an unknown name, two explainers of one name, or a module that cannot be imported (with its
            traceback) or patches functions of others when it is.
    """
    if not specs:
        return list(builtin_explainers().values())
    registered_pairs()  # loads the code of the models
    return load_explainers(specs)


def load_explainers(specs: Sequence[str]) -> list[Explainer]:
    """The explainers that the specs name, each as `load_explainer` takes it.

    Call it when the code of the models is loaded: what is loaded later cannot be seen to be patched.

    Raises:
        OptionError: see `choose_explainers`.
    """
    namespaces = current_namespaces()
    explainers = [loaded(f"--explainer={spec}", lambda spec=spec: load_explainer(spec)) for spec in specs]  # type: ignore[misc]
    if patched := namespaces.patched():
        namespaces.restore({})
        raise OptionError(
            f"--explainer={' --explainer='.join(specs)}: the import of a module replaces {', '.join(patched[:3])}, so "
            "that all explainers would explain other models: patch in `attribute`, and undo it there"
        )
    names = [explainer.name for explainer in explainers]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise OptionError(f"two explainers are named {', '.join(twice)}: name each once, and give each its own name")
    return explainers


def origins(specs: Sequence[str], explainers: Sequence[Explainer]) -> dict[str, str]:
    """The origin of each explainer, by its name.

    Args:
        specs: the specs that the explainers were chosen by; none for the built-in explainers.
        explainers: the result of `choose_explainers` for the specs.
    """
    names = specs or [explainer.name for explainer in explainers]
    return {explainer.name: origin(spec, explainer) for spec, explainer in zip(names, explainers, strict=True)}
