"""The document of ``faithcheck align``: how explainers agree with Leave-One-Out over the examples of a data set."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

from msgspec import Struct, field

from faithcheck.reports.documents.document import Document, Number, Run
from faithcheck.reports.documents.words import Feature

# --- what was measured on ---------------------------------------------------------------------------------------------


class Model(Struct, frozen=True, kw_only=True):
    """The model whose outputs are explained.

    Attributes:
        name: the folder or the name that the user gave.
        class_: its class in ``transformers``, ``class`` in the file.
        layers: how many; None if its configuration does not say.
        parameters: how many.
        fingerprint: a digest of its weights.
        features: what its features are.
        explained: which of its outputs is explained, and where relevance is read, in words.
    """

    name: str
    class_: str = field(name="class")
    layers: int | None
    parameters: int
    fingerprint: str
    features: Literal["tokens", "patches"]
    explained: str

    @property
    def feature(self) -> str:
        """The name of one of its features."""
        return {"tokens": "token", "patches": "patch"}[self.features]


class Data(Struct, frozen=True, kw_only=True):
    """The data set: its name, what an item of it is (``texts`` or ``images``), and a digest of its content."""

    name: str
    items: str
    fingerprint: str

    @property
    def item(self) -> str:
        """The name of one of its items."""
        return self.items.removesuffix("s")


class Settings(Struct, frozen=True, kw_only=True):
    """How alignment was measured.

    Attributes:
        target: the explained output that the user asked for; None for the predicted one.
        contrast: the output that is subtracted from it, or None.
        removal: how a feature is removed, in words.
        chunk: how many neighbouring features the curves remove at a step.
        chunk_reason: the same with its reason, in words.
        max_length: the most features of an example, or None.
        max_tokens: the most features in a forward pass, padding included.
        dtype: the type of the arithmetic, such as ``float32``.
        device: such as ``cpu``.
        threads: those of torch.
        seed: of the bootstrap and of random removals.
    """

    target: str | None = None
    contrast: str | None = None
    removal: str
    chunk: int
    chunk_reason: str
    max_length: int | None
    max_tokens: int
    dtype: str
    device: str
    threads: int
    seed: int


class Counts(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How many examples there are, and why some are not measured.

    Attributes:
        examples: all.
        measured: those that are measured.
        empty: those left out because every feature is special.
        alone: those left out because they have a single feature.
        truncated: those that were cut.
        one_feature: the measured ones with a single feature that is not special.
        unanswered: those left out because the model's answer is empty.
        too_long: those left out because a decoder takes no prompt of this length.
    """

    examples: int
    measured: int
    empty: int
    alone: int
    truncated: int
    one_feature: int
    unanswered: int = 0
    too_long: int = 0


class Examples(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The measured examples: their indices in the data, their features, digests of their content, and answers."""

    index: list[int] | None = None
    features: list[int] | None = None
    digests: list[str] | None = None
    answers: list[str | None] | None = None


# --- the figures of an explainer --------------------------------------------------------------------------------------


class Mean(Struct, frozen=True, kw_only=True):
    """The mean of a figure over the ``n`` examples where it is defined, with its bootstrap 95 % interval."""

    mean: Number | None
    low: Number | None
    high: Number | None
    n: int
    undefined: int = 0


class Means(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The mean of each figure of an explainer; documents of older versions lack the shares.

    Correlations with LOO are over the features that are not special, or over ``all``. LeRF and MoRF are the means of
    the perturbation curves, ``delta`` is their difference, and ``aopc`` their areas over the curve. A share is the part
    of a map, in absolute values, at a place.
    """

    pearson_no_special: Mean
    pearson_sum_to_one_no_special: Mean
    spearman_no_special: Mean
    kendall_no_special: Mean
    pearson_all: Mean
    pearson_sum_to_one_all: Mean
    spearman_all: Mean
    kendall_all: Mean
    lerf: Mean
    morf: Mean
    delta: Mean
    lerf_aopc: Mean
    morf_aopc: Mean
    share_first: Mean | None = None
    share_separators: Mean | None = None
    share_punctuation: Mean | None = None
    share_positions: Mean | None = None

    @property
    def r(self) -> Mean:
        """The figure that explainers are sorted by."""
        return self.pearson_no_special


class Undefined(Struct, frozen=True, kw_only=True):
    """How many examples have no correlation, by reason: over the features that are not special, and over all."""

    no_special: dict[str, int]
    all: dict[str, int]


class Peaks(Struct, frozen=True, kw_only=True):
    """The peak memory of one batch over the model's own, in bytes."""

    predicted: int
    measured: int


class Curves(Struct, frozen=True, kw_only=True):
    """The means of both perturbation curves where these shares of the features are ``removed``."""

    removed: list[Number]
    lerf: list[Number | None]
    morf: list[Number | None]


class Explainer(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An explainer and its figures. Documents of older versions lack what has a default.

    Attributes:
        name: its name.
        label: its name in tables and figures.
        how: its settings, in words.
        refused: why it was not measured; else empty.
        failed: whether it was not measured because it raised an error.
        warned: how many warnings it gave, and the first of them; else empty.
        left_behind: what it left behind on the model or in the process, which was undone; else empty.
        smaller: which batches were measured in smaller parts, and why; else empty.
        left_out: which batches were not measured because they ended their workers; else empty.
        no_positions: why no relevance of position embeddings is known; else empty.
        memory: of the batch that was predicted to take most.
        cost: the arithmetic of an attribution, in plain forward passes of the same inputs.
        mean_curves: its mean perturbation curves.
        figures: the mean of each figure.
        undefined: the examples without a correlation.
        examples: the values of each figure, one for each measured example, if there are few.
    """

    name: str
    label: str = ""
    how: str
    refused: str
    failed: bool = False
    warned: str
    left_behind: str = ""
    smaller: str = ""
    left_out: str = ""
    no_positions: str = ""
    memory: Peaks | None = None
    cost: Number | None = None
    mean_curves: Curves | None = None
    figures: Means
    undefined: Undefined
    examples: dict[str, list[Number | None]] = {}

    @property
    def title(self) -> str:
        """The name that a page shows."""
        return self.label or self.name

    @property
    def is_failed(self) -> bool:
        """Whether the explainer failed, ended its workers or left something behind."""
        return bool(self.failed or self.left_out or self.left_behind)

    @property
    def has_curves(self) -> bool:
        """Whether its perturbation curves were measured."""
        return self.figures.delta.n > 0


class Comparison(Struct, frozen=True, kw_only=True):
    """A figure of two explainers on the ``n`` examples where both are defined, paired.

    Attributes:
        explainer: the name of the explainer.
        against: the name of the other explainer.
        figure: the name of the figure, a field of `Means`.
        mean: that of the explainer over these examples.
        mean_against: that of the other one.
        difference: the mean of the differences.
        low: the lower end of its bootstrap 95 % interval.
        high: the upper end.
        p: of Wilcoxon's signed-rank test.
        n: how many examples.
        undefined: how many other examples.
    """

    explainer: str
    against: str
    figure: str
    mean: Number | None
    mean_against: Number | None
    difference: Number | None
    low: Number | None
    high: Number | None
    p: Number | None
    n: int
    undefined: int = 0

    def __post_init__(self) -> None:
        if self.figure not in Means.__struct_fields__:
            raise ValueError(f"unknown figure {self.figure!r}; known: {', '.join(Means.__struct_fields__)}")


# --- examples whose maps are shown ------------------------------------------------------------------------------------


class ShownMap(Struct, frozen=True, kw_only=True):
    """The map of an explainer on a shown example: its correlation ``r`` with LOO, and a value for each feature."""

    explainer: str
    r: Number | None
    values: list[Number]


class Shown(Struct, frozen=True, kw_only=True):
    """An example whose maps are shown: its index, how well the explainers agree on it with LOO, and their mean r."""

    index: int
    agreement: Literal["least", "median", "most"]
    mean: Number | None
    features: list[Feature]
    maps: list[ShownMap]

    def __post_init__(self) -> None:
        for one in self.maps:
            if len(one.values) != len(self.features):
                raise ValueError(f"the map of {one.explainer} has {len(one.values)} values, not {len(self.features)}")


class Parquet(Struct, frozen=True, kw_only=True):
    """The Parquet files of every example: their folder, and their names by explainer."""

    folder: str
    files: dict[str, list[str]]


class Alignment(Document, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="alignment"):
    """How explainers agree with Leave-One-Out. It holds no date: equal runs give equal documents.

    Attributes:
        examples: None if there are too many.
        comparisons: of each explainer with AttnLRP.
        shown: empty in documents of older versions.
        run: how the work was shared, of a run with a cluster or a plan.
    """

    NAME: ClassVar[str] = "alignment"
    WRITER: ClassVar[str] = "faithcheck align"
    VERSION: ClassVar[int] = 1

    model: Model
    data: Data
    settings: Settings
    counts: Counts
    examples: Examples | None = None
    explainers: list[Explainer]
    comparisons: list[Comparison]
    parquet: Parquet | None = None
    shown: list[Shown] = field(default_factory=list)
    run: Run | None = None

    @property
    def is_failed(self) -> bool:
        """Whether an explainer failed, ended its workers or left something behind."""
        return any(one.is_failed for one in self.explainers)

    @property
    def measured(self) -> list[Explainer]:
        """The measured explainers: LOO, the reference, then the others from the largest r; undefined ones last."""

        def place(explainer: Explainer) -> tuple[bool, float]:
            r = explainer.figures.r.mean
            return explainer.name != "loo", math.inf if r is None or math.isnan(r) else -r

        return sorted((one for one in self.explainers if not one.refused), key=place)

    def title_of(self, name: str) -> str:
        """The name that a page shows for the explainer of this name."""
        return next((one.title for one in self.explainers if one.name == name), name)


# --- the plan ---------------------------------------------------------------------------------------------------------


class PlannedExplainer(Struct, frozen=True, kw_only=True):
    """What is left to measure of an explainer after the probe.

    Attributes:
        name: its name.
        batches: how many.
        rows: those of the forward passes.
        tokens: those of the forward passes.
        passes: forward passes, if all are full.
        probed: the batches that the probe measured.
        seconds: the estimate for one worker.
        longest: the estimate for the longest batch.
        peak: the bytes of the batch that is predicted to take most, or None.
    """

    name: str
    batches: int
    rows: int
    tokens: int
    passes: int
    probed: int
    seconds: float
    longest: float
    peak: int | None


class Plan(Struct, frozen=True, kw_only=True):
    """What ``faithcheck align --plan`` estimates.

    Attributes:
        explainers: what is left of each.
        workers: how many there are.
        tasks: the batches that are left.
        seconds: the estimate for all workers, after the probe.
        probe: the seconds that the probe took.
    """

    explainers: list[PlannedExplainer]
    workers: int
    tasks: int
    seconds: float
    probe: float
