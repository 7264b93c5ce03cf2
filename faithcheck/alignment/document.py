"""The document of an alignment: what was measured, on what, and how."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import torch
from msgspec import Struct, structs

from faithcheck import catalogue
from faithcheck.alignment import run_key
from faithcheck.alignment.batches import AlignmentError
from faithcheck.alignment.explainer_pass import ExplainerResult
from faithcheck.alignment.figures import Figures, figures_of
from faithcheck.alignment.parquet import write_parquet
from faithcheck.alignment.shown_examples import shown_examples
from faithcheck.alignment.summary import summary
from faithcheck.models.data.images import Images
from faithcheck.models.data.texts import Texts
from faithcheck.models.pretrained.answer_model import AnswerModel
from faithcheck.models.pretrained.image_classifier import ImageClassifier
from faithcheck.models.pretrained.loading import class_in_words
from faithcheck.models.pretrained.target_choice import explained_in_words
from faithcheck.reports.documents.alignment import Alignment, Data, Examples, Model, Parquet, Plan, Settings
from faithcheck.reports.documents.document import Environment, Run, to_json
from faithcheck.reports.documents.environment import environment, version

if TYPE_CHECKING:
    from faithcheck.alignment.preparation import Prepared
    from faithcheck.alignment.settings import AlignRequest


class Heading(Struct, frozen=True, kw_only=True):
    """What was measured on: the part of the document that is known before the measurement."""

    faithcheck: str
    environment: Environment
    model: Model
    data: Data
    settings: Settings


def heading(request: AlignRequest, prepared: Prepared) -> Heading:
    """The model, the data and the settings of the document; no date, so that equal runs give equal documents."""
    model, data, setup = prepared.model, prepared.data, prepared.setup
    images = isinstance(model, ImageClassifier)
    read_at = (
        "pixels, a patch a feature"
        if images
        else "word embeddings, so that what reaches position and type embeddings is not in it"
    )
    return Heading(
        faithcheck=version(),
        environment=environment(),
        model=Model(
            name=request.model or "the project's own",
            class_=class_in_words(model.model),
            layers=getattr(model.model.config, "num_hidden_layers", None),
            parameters=sum(parameter.numel() for parameter in model.parameters()),
            fingerprint=run_key.fingerprint(model),
            features="patches" if images else "tokens",
            explained=f"{explained_in_words(model)}; relevance is read at the {read_at}",
        ),
        data=Data(name=data.name, items="images" if images else "texts", fingerprint=data.fingerprint),
        settings=Settings(
            target=request.target,
            contrast=request.contrast,
            removal=setup.removal.description,
            chunk=setup.chunk,
            chunk_reason=prepared.chunk_reason,
            max_length=getattr(model, "max_length", None),
            max_tokens=setup.max_tokens,
            dtype=str(request.settings.dtype).removeprefix("torch."),
            device=str(request.settings.device),
            threads=torch.get_num_threads(),
            seed=setup.seed,
        ),
    )


def document_of(
    request: AlignRequest, prepared: Prepared, outcomes: Sequence[ExplainerResult], run: Run | None
) -> Alignment:
    """The document of what was measured; --parquet also writes its files.

    `AlignmentError`: every explainer was refused. `OSError`, `StoreError`: a file cannot be written or read.
    """
    if all(one.refused for one in outcomes):
        raise AlignmentError(f"nothing can be measured: {outcomes[0].refused}")
    figures = figures_of(prepared.examples, outcomes, prepared.model.model.dtype)
    found = summary(prepared.examples, outcomes, figures, prepared.setup.seed)
    about = heading(request, prepared)
    if run is not None:
        run = structs.replace(run, estimated=_estimated(prepared.folder, about, outcomes, run.tasks))
    records = {one.name: one.records for one in outcomes if not one.refused}
    return Alignment(
        schema_version=Alignment.VERSION,
        **structs.asdict(about),
        counts=found.counts,
        examples=found.examples and _with_content(found.examples, prepared),
        explainers=found.explainers,
        comparisons=found.comparisons,
        parquet=_parquet(request.parquet, about, prepared, outcomes, figures) if request.parquet else None,
        shown=shown_examples(figures, prepared.examples, records),
        run=run if run is not None and (request.place.cluster is not None or run.estimated is not None) else None,
    )


def _with_content(examples: Examples, prepared: Prepared) -> Examples:
    """The examples with the digests of their content and, if answers are explained, the answers as text."""
    indices = examples.index or []
    answers = [prepared.answer_of(i) for i in indices] if isinstance(prepared.model, AnswerModel) else None
    return structs.replace(examples, digests=[digest_of(prepared.data, i) for i in indices], answers=answers)


def _parquet(
    folder: Path,
    about: Heading,
    prepared: Prepared,
    outcomes: Sequence[ExplainerResult],
    figures: Mapping[str, Figures],
) -> Parquet:
    saved = catalogue.saved()
    made_by = {**to_json(about), "catalogue": {key: saved[key] for key in ("version", "hash")}}
    digest = partial(digest_of, prepared.data)
    files = {
        one.name: write_parquet(folder, one, figures[one.name], digest, prepared.answer_of, made_by)
        for one in outcomes
        if not one.refused
    }
    return Parquet(folder=str(folder), files=files)


def digest_of(data: Texts | Images, i: int) -> str:
    """A digest of one text or image, by which `faithcheck compare` finds it in another document."""
    item = data.images[i].numpy().tobytes() if isinstance(data, Images) else data.texts[i]
    content = item if isinstance(item, bytes) else (item if isinstance(item, str) else "\0".join(item)).encode()
    return hashlib.sha256(content).hexdigest()[:16]


# --- the plan that estimated the run ----------------------------------------------------------------------------------


def plan_file(folder: Path, about: Heading, explainers: Sequence[str]) -> Path:
    """Where the plan of this alignment is kept: beside the stores, named by what is measured."""
    same = {"about": to_json([about.model, about.data, about.settings]), "explainers": [*explainers]}
    return folder / f"plan-{run_key.digest_of(same)[:32]}.json"


def _estimated(folder: Path, about: Heading, outcomes: Sequence[ExplainerResult], tasks: int) -> float | None:
    """The seconds that a plan estimated for this run; None without one, or if the run had other tasks to do."""
    try:
        plan = msgspec.json.decode(plan_file(folder, about, [one.name for one in outcomes]).read_bytes(), type=Plan)
    except (OSError, msgspec.DecodeError):
        return None
    return plan.seconds if plan.tasks == tasks else None
