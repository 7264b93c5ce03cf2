"""The document of ``faithcheck align``: how explainers agree with Leave-One-Out over the examples of a data set."""

import math
from typing import ClassVar, Literal

from msgspec import Struct, field

from faithcheck.reports.documents.document import Document, Number, Run
from faithcheck.reports.documents.words import Feature

# --- what was measured on ---------------------------------------------------------------------------------------------


class Model(Struct, frozen=True, kw_only=True):
    """The model whose outputs are explained."""

    name: str  # the folder or the name that the user gave
    class_: str = field(name="class")
    layers: int | None  # None if its configuration does not say
    parameters: int
    fingerprint: str  # of its weights
    features: Literal["tokens", "patches"]
    explained: str  # the explained output, and where relevance is read, in words

    @property
    def feature(self) -> str:
        """The name of one of its features."""
        return {"tokens": "token", "patches": "patch"}[self.features]


class Data(Struct, frozen=True, kw_only=True):
    """The data set."""

    name: str
    items: str  # "texts" or "images"
    fingerprint: str  # of its content

    @property
    def item(self) -> str:
        """The name of one of its items."""
        return self.items.removesuffix("s")


class Settings(Struct, frozen=True, kw_only=True):
    """How alignment was measured."""

    target: str | None = None  # the explained output; None for the predicted one
    contrast: str | None = None  # the output that is subtracted from it
    removal: str  # in words
    chunk: int  # how many neighbouring features the curves remove at a step
    chunk_reason: str
    max_length: int | None  # in features
    max_tokens: int  # in a forward pass, padding included
    dtype: str
    device: str
    threads: int
    seed: int


class Counts(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How many examples there are, and why some are not measured."""

    examples: int
    measured: int
    empty: int  # left out: every feature is special
    alone: int  # left out: they have a single feature
    truncated: int
    one_feature: int  # measured, with a single feature that is not special
    unanswered: int = 0  # left out: the model's answer is empty
    too_long: int = 0  # left out: a decoder takes no prompt of this length


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

    Correlations with LOO are over the features that are not special, or over ``all``. ``delta`` is the difference of
    LeRF and MoRF, the means of the perturbation curves, and ``aopc`` their areas over the curve. A share is the part of
    a map, in absolute values, at a place.
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
    """How many examples have no correlation, by reason."""

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
    """An explainer and its figures. Documents of older versions lack what has a default."""

    name: str
    label: str = ""
    how: str  # its settings, in words
    refused: str  # why it was not measured
    failed: bool = False  # it was not measured because it raised an error
    warned: str  # how many warnings it gave, and the first of them
    left_behind: str = ""  # on the model or in the process; it was undone
    smaller: str = ""  # which batches were measured in smaller parts, and why
    left_out: str = ""  # which batches were not measured because they ended their workers
    no_positions: str = ""  # why no relevance of position embeddings is known
    memory: Peaks | None = None  # of the batch that was predicted to take most
    cost: Number | None = None  # of an attribution, in plain forward passes of the same inputs
    mean_curves: Curves | None = None
    figures: Means
    undefined: Undefined
    examples: dict[str, list[Number | None]] = {}  # of each figure a value for each measured example, if there are few

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
    """A figure of two explainers on the ``n`` examples where both are defined, paired."""

    explainer: str
    against: str
    figure: str  # a field of `Means`
    mean: Number | None
    mean_against: Number | None
    difference: Number | None  # mean of the differences; low and high are its bootstrap 95 % interval
    low: Number | None
    high: Number | None
    p: Number | None  # of Wilcoxon's signed-rank test
    corrected_p: Number | None = None  # for the number of explainers, by Benjamini & Hochberg; none in old documents
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
    """An example whose maps are shown: how well the explainers agree on it with LOO, and their mean r."""

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
    """How explainers agree with Leave-One-Out. It holds no date: equal runs give equal documents."""

    NAME: ClassVar[str] = "alignment"
    WRITER: ClassVar[str] = "faithcheck align"
    VERSION: ClassVar[int] = 1

    model: Model
    data: Data
    settings: Settings
    counts: Counts
    examples: Examples | None = None  # None if there are too many
    explainers: list[Explainer]
    comparisons: list[Comparison]  # of each explainer with AttnLRP
    parquet: Parquet | None = None
    shown: list[Shown] = field(default_factory=list)
    run: Run | None = None  # of a run with a cluster or a plan

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
    """What is left to measure of an explainer after the probe: rows and tokens are those of forward passes."""

    name: str
    batches: int
    rows: int
    tokens: int
    passes: int  # forward passes, if all are full
    probed: int  # the batches that the probe measured
    seconds: float  # of one worker
    longest: float  # of the longest batch
    peak: int | None  # the bytes of the batch that is predicted to take most


class Plan(Struct, frozen=True, kw_only=True):
    """What ``faithcheck align --plan`` estimates."""

    explainers: list[PlannedExplainer]
    workers: int
    tasks: int  # the batches that are left
    seconds: float  # of all workers, after the probe
    probe: float  # the seconds that the probe took
