"""The layer-wise ablation: how agreement with LOO moves as the softmax is bypassed in more and more layers.

Figure 2 and Table A3 of You et al., arXiv 2510.18810.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from faithcheck.axioms.alignment.evaluate import Example, Outcome, Setup, batches, determining, recorded
from faithcheck.axioms.alignment.store import Store
from faithcheck.explainers.lrp.softmax_bypass import attributions_with_bypassed_softmax
from faithcheck.models.case import Case


def ablate(
    model: Any,
    examples: Sequence[Example],
    sets: Sequence[Collection[int]],
    setup: Setup,
    folder: Path,
) -> list[Outcome]:
    """Explain every example by AttnLRP with the softmax bypassed in each set of layers: an outcome a set.

    The sets share their forward and backward passes (`attributions_with_bypassed_softmax`). Measurements are stored in
    ``folder`` batch by batch, as by `align`.

    Raises:
        AlignmentError, StoreError: see `align`.
        Unsupported: see `attributions_with_bypassed_softmax`.
    """
    plan = batches(examples, setup.max_tokens)
    key = {**determining(model, examples, plan, setup), "bypassing": [sorted(layers) for layers in sets]}
    measured: list[dict[int, Any]] = [{} for _ in sets]
    with Store(folder, "bypassing", key) as store:
        for number, batch in enumerate(plan):
            if number not in store.batches:
                case: Case = model.case([examples[i] for i in batch])
                maps = attributions_with_bypassed_softmax(model, case, sets)
                store.append(number, [recorded(model, case, attribution, setup) for attribution in maps])
            for kept, records in zip(measured, store.batches[number], strict=True):
                kept.update(zip(batch, records, strict=True))
    return [Outcome(name_of(layers), "softmax bypassed", kept) for layers, kept in zip(sets, measured, strict=True)]


def name_of(layers: Collection[int]) -> str:
    """What the map is called: the layers counted from 1, as the paper does; AttnLRP where there is none."""
    return f"layers {', '.join(str(layer + 1) for layer in sorted(layers))}" if layers else "attnlrp"
