"""``--checkpoint``: the pairs that the registered transforms make of the user's own model."""

from __future__ import annotations

from collections.abc import Sequence

from faithcheck.options import OptionError


def choose_checkpoint(paths: Sequence[str]) -> list[str]:
    """Register the pairs of a checkpoint, and return their names; none without a path.

    Raises:
        OptionError: more than one path, or an empty one; a model that cannot be loaded, run in float64, or changed.
    """
    if not paths:
        return []
    if len(paths) > 1 or not paths[0]:
        raise OptionError(
            f"--checkpoint takes one path, that of a folder, or one hub name; got {' and '.join(paths) or 'none'}"
        )
    from faithcheck.models import transform  # not at the top: transformers takes seconds to import
    from faithcheck.models.pretrained.folder import ModelError

    try:
        return [pair.name for pair in transform.register_checkpoint(paths[0])]
    except ModelError as error:
        raise OptionError(f"--checkpoint: {error}") from error


def describe_checkpoint(names: Sequence[str]) -> str:
    """The number of a checkpoint's pairs, and the transforms that do not apply to it, each with what it needs.

    Args:
        names: the result of `choose_checkpoint`.
    """
    from faithcheck.models import transform

    transforms = [t for t in transform.registered_transforms().values() if f"{t.name}_checkpoint" not in names]
    needs = [f"\n  {t.name} needs {' and '.join(each.description for each in t.requires)}" for t in transforms]
    return f"checkpoint: {len(names)} pairs; {len(transforms)} transforms do not apply to it:{''.join(needs)}"
