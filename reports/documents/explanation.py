"""The document of ``faithcheck explain``: the maps of one text by several explainers."""

from typing import ClassVar

from msgspec import Struct, field

from faithcheck.reports.documents.document import Document, Environment, Number
from faithcheck.reports.documents.words import Feature


class Map(Struct, frozen=True, kw_only=True):
    """The map of an explainer."""

    explainer: str
    how: str  # its settings, in words
    origin: str  # the library that it is from; empty for faithcheck's own
    values: list[float]  # the relevance of each feature
    sum: float
    r: Number | None  # Pearson's correlation with LOO over the features that are not special
    left_behind: str  # what the explainer left behind, which was undone; else empty
    notes: list[str]


class Refused(Struct, frozen=True, kw_only=True):
    """An explainer without a map."""

    explainer: str
    why: str


class Output(Struct, frozen=True, kw_only=True):
    """An output of the model; the one output of an answer is its log-likelihood."""

    number: int
    name: str
    logit: Number | None
    probability: Number | None
    explained: bool


class Explanation(Document, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="explanation"):
    """The maps of one text. Documents of older versions lack what has a default.

    Raises `ValueError` unless there are maps, each with a value for each feature, and exactly one output is explained.
    """

    NAME: ClassVar[str] = "explanation"
    WRITER: ClassVar[str] = "faithcheck explain"
    VERSION: ClassVar[int] = 1

    environment: Environment = field(default_factory=dict)
    model: str  # the folder or the name
    architecture: str  # its class in ``transformers``
    device: str
    text: str
    text_pair: str | None = None  # the second text of a pair; None for one text
    explained: str  # the name of the explained output
    what: str = ""  # the same in words, such as "the logit of the class good"
    target: str | None = None  # the output that the user asked for; None for the most likely one
    contrast: str | None = None  # the output that is subtracted from it
    answer: list[str] = field(default_factory=list)  # the tokens of the explained answer; empty if none is explained
    decoder: bool  # whether the model predicts a next token
    classes: list[Output]  # the most likely ones and the explained one
    probability: str = ""  # what makes probabilities of the logits: softmax, sigmoid, or empty
    outputs: int  # how many the model has
    by: str = "token"  # what LOO removes at once, and over whose tokens r and tables sum: "word", "sentence", …
    interaction: Number | None = None  # of LOO by parts, see `faithcheck.explanation.explain`
    features: list[Feature]
    maps: list[Map]  # LOO first
    refused: list[Refused] = field(default_factory=list)  # those that refused or failed
    change: Number | None  # f(x) − f(baseline)
    notes: list[str]

    def __post_init__(self) -> None:
        if not self.maps and not self.refused:
            raise ValueError("maps and refused are empty")
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
