"""``--like``: a user's own implementation of a built-in explainer is held to that one's claims and closed forms.

``--like=attnlrp`` is about the one explainer of the run that is not built in, ``--like=SPEC=attnlrp`` about the one
that ``--explainer=SPEC`` names.
"""

from __future__ import annotations

from collections.abc import Sequence

from faithcheck.axioms.measure.expectations import held_like
from faithcheck.explainers.names import builtin_names
from faithcheck.explainers.protocol import Explainer
from faithcheck.options import OptionError


def hold_like(likes: Sequence[str], specs: Sequence[str], explainers: Sequence[Explainer]) -> list[Explainer]:
    """The explainers of a run, those that ``--like`` names held to a built-in one.

    Args:
        likes: the values of ``--like``.
        specs: the values of ``--explainer``.
        explainers: the explainers that these specs name.

    Raises:
        OptionError: no such built-in explainer (the message has the nearest names), or it is not clear which explainer
            of the run is meant.
    """
    held, own = list(explainers), [spec for spec in specs if spec not in builtin_names()]
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
