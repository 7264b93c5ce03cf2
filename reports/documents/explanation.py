"""The document of ``faithcheck explain``: the maps of one text by several explainers."""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct, field

from faithcheck.reports.documents.document import Document, Environment, Number
from faithcheck.reports.documents.words import Feature


class Map(Struct, frozen=True, kw_only=True):
    """The map of an explainer.

    Attributes:
        explainer: its name.
        how: its settings, in words.
        origin: the library that it is from; empty for faithcheck's own.
        values: the relevance of each feature.
        sum: of the values.
        r: Pearson's correlation with the map of LOO over the features that are not special; None if undefined.
        left_behind: what the explainer left behind, which was undone; else empty.
        notes: sentences, such as its warnings.
    """

    explainer: str
    how: str
    origin: str
    values: list[float]
    sum: float
    r: Number | None
    left_behind: str
    notes: list[str]


class Output(Struct, frozen=True, kw_only=True):
    """An output of the model: its number and name, logit, probability (None without one), and whether it is explained.

    The one output of an answer is its log-likelihood.
    """

    number: int
    name: str
    logit: Number | None
    probability: Number | None
    explained: bool


class Explanation(Document, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="explanation"):
    """The maps of one text. Documents of older versions lack what has a default.

    Attributes:
        environment: empty.
        model: the folder or the name of the model.
        architecture: its class in ``transformers``.
        device: such as ``cpu``.
        text: what is explained.
        explained: the name of the explained output.
        what: the same in words, such as "the logit of the class good".
        target: the output that the user asked for; None for the most likely one.
        contrast: the output that is subtracted from it, or None.
        answer: the tokens of the explained answer; empty if none is explained.
        decoder: whether the model predicts a next token.
        classes: the most likely outputs and the explained one.
        probability: the function of the logits that gives the probabilities: softmax, sigmoid, or empty.
        outputs: how many outputs the model has.
        features: the tokens of the text.
        maps: LOO first.
        change: f(x) − f(baseline).
        notes: sentences on the text.

    Raises:
        ValueError: a map has not one value for each feature, or not exactly one output is explained.
    """

    NAME: ClassVar[str] = "explanation"
    WRITER: ClassVar[str] = "faithcheck explain"
    VERSION: ClassVar[int] = 1

    environment: Environment = field(default_factory=dict)
    model: str
    architecture: str
    device: str
    text: str
    explained: str
    what: str = ""
    target: str | None = None
    contrast: str | None = None
    answer: list[str] = field(default_factory=list)
    decoder: bool
    classes: list[Output]
    probability: str = ""
    outputs: int
    features: list[Feature]
    maps: list[Map]
    change: Number | None
    notes: list[str]

    def __post_init__(self) -> None:
        for i, one in enumerate(self.maps):
            if len(one.values) != len(self.features):
                raise ValueError(f"maps[{i}].values has {len(one.values)} numbers for {len(self.features)} features")
        explained = sum(one.explained for one in self.classes)
        if explained != 1:
            raise ValueError(f"classes has {explained} explained outputs, not 1")

    @property
    def is_failed(self) -> bool:
        """Whether an explainer left something behind."""
        return any(one.left_behind for one in self.maps)
