"""The layer-wise ablation: how agreement with LOO changes as the softmax is bypassed in more and more layers.

Figure 2 and Table A3 of You et al., arXiv 2510.18810.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from msgspec import convert, to_builtins

from faithcheck.alignment.batch import measured_examples
from faithcheck.alignment.batch_result import MeasuredExample
from faithcheck.alignment.batches import batches
from faithcheck.alignment.evaluate import common_key
from faithcheck.alignment.explainer_pass import ExplainerResult
from faithcheck.alignment.settings import AlignmentSettings
from faithcheck.alignment.store import Store
from faithcheck.models.case import Case
from faithcheck.models.pretrained.example import Examples
from faithcheck.tests.helpers.attnlrp_variants import attnlrp_with_bypassed_softmax


def ablate(
    model: Any,
    examples: Examples,
    sets: Sequence[Collection[int]],
    settings: AlignmentSettings,
    folder: Path,
) -> list[ExplainerResult]:
    """Explain every example by AttnLRP with the softmax bypassed in each set of layers: one result per set.

    Measurements are stored in ``folder`` batch by batch, as by `align`.
    """
    plan = batches(examples, settings.max_tokens)
    key = {**common_key(model, examples, plan, settings), "softmax bypassed": [sorted(layers) for layers in sets]}
    measured: list[dict[int, MeasuredExample]] = [{} for _ in sets]
    with Store(folder, "softmax_bypassed", key) as store:
        for number, batch in enumerate(plan):
            if number not in store:
                case: Case = model.case([examples[i] for i in batch])
                maps = [attnlrp_with_bypassed_softmax(layers).attribute(model, case) for layers in sets]
                unknown = [None] * len(batch)  # what position embeddings keep
                examples_of = [measured_examples(model, case, one, settings, unknown) for one in maps]
                store.append(number, to_builtins(examples_of))
            for of_set, records in zip(measured, convert(store[number], list[list[MeasuredExample]]), strict=True):
                of_set.update(zip(batch, records, strict=True))
    results = zip(sets, measured, strict=True)
    return [ExplainerResult(name_of(layers), how="softmax bypassed", records=records) for layers, records in results]


def name_of(layers: Collection[int]) -> str:
    """The name of the map: the layers counted from 1, as in the paper; ``attnlrp`` for no layers."""
    return f"layers {', '.join(str(layer + 1) for layer in sorted(layers))}" if layers else "attnlrp"
