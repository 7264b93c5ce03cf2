"""Loading of trained models by path or hub name: text classifiers, decoders and image classifiers."""

import importlib.util
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils.hub import cached_file

from faithcheck.models.pretrained import SENTIMENT
from faithcheck.models.pretrained.example import Example
from faithcheck.models.pretrained.folder import HOLDS, ModelError, gguf_source, is_gguf
from faithcheck.models.pretrained.image_classifier import ImageClassifier
from faithcheck.models.pretrained.image_preparation import read_preparation
from faithcheck.models.pretrained.text_model import NextTokenModel, TextClassifier, TextModel, vocabulary_size

__all__ = ["SENTIMENT", "ModelError", "load"]

ATTENTION = "eager"
"""Softmax attention written out, whose weights and gradients explainers read."""
EXPERTS = "eager"
"""Experts of a mixture one after another: transformers' own choice, a grouped matrix product, has no rule."""
ALL_GPUS = "auto"
"""The device of a model that is larger than a GPU."""
PADDING_ERROR = 1e-4
"""The largest change of the output by padding, relative to the largest logit: float32 changes it by 1e-6."""
NEEDS_CODE = (
    "its code is not a part of transformers and would run here with your rights: read it and, if you trust it, give "
    "--allow-code (in Python allow_code=True)"
)


def load(
    name: str | Path = SENTIMENT,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    max_length: int | None = None,
    allow_pickle: bool = False,
    allow_code: bool = False,
) -> TextModel | ImageClassifier:
    """Load a model by local path or hub name, unmodified, with eager attention, in eval mode.

    The architecture in its configuration decides how it is used: ``…ForSequenceClassification`` as a `TextClassifier`,
    ``…ForCausalLM`` or ``…LMHeadModel`` as a `NextTokenModel`, ``…ForImageClassification`` as an `ImageClassifier`.

    Args:
        name: a hub name, or a folder with config.json, model.safetensors and a tokenizer, or preprocessor_config.json
            for images; or a ``.gguf`` file, a decoder whose quantised weights are restored to ``dtype``.
        device: where to put the model; `ALL_GPUS` shares its layers between all GPUs of this process, by accelerate.
        dtype: the weights are converted to it, whatever dtype they are stored in.
        max_length: the most tokens of a text, see `TextModel`.
        allow_pickle: also load ``pytorch_model.bin``, through torch's restricted unpickler; otherwise it is refused.
        allow_code: also run the code that comes with the model, with the user's rights; otherwise it is refused.

    Raises:
        ModelError: the model is missing, has no head of these kinds, is quantised, asks for an attention that is not
            built in, its output changes with padding, or masking a token gives NaN.
    """
    source = str(name)
    model, preparation = _read(source, dtype, allow_pickle, allow_code, device)
    model.eval()
    if isinstance(preparation, Path):
        return _image_classifier(model, preparation, max_length).eval()
    decoder = _auto_class(source, model.config) is AutoModelForCausalLM
    kind = NextTokenModel if decoder else TextClassifier
    text_model = kind(model, preparation, max_length).eval()
    try:
        _check_text_model(text_model, source)
    except ModelError:
        text_model = kind(model, preparation, max_length, by_ids=True).eval()
        _check_text_model(text_model, source)
    return text_model


def class_in_words(model: PreTrainedModel) -> str:
    """The class of a model, and for one from a GGUF file the type to which its weights were restored."""
    name = type(model).__name__
    settings = getattr(model.config, "quantization_config", None)
    if getattr(settings, "gguf_file", None) is None:  # other quantised models are refused
        return name
    return f"{name}, its weights restored from GGUF as {str(model.dtype).removeprefix('torch.')}"


def _read(
    source: str, dtype: torch.dtype, allow_pickle: bool, allow_code: bool, device: torch.device | str
) -> tuple[Any, PreTrainedTokenizerBase | Path]:
    """The model, and its tokenizer or, for images, the file of its preprocessor."""
    options: dict[str, Any] = {"trust_remote_code": allow_code}
    place = source
    if is_gguf(source):
        place, in_file = gguf_source(source)
        options |= in_file
    shared = device == ALL_GPUS
    if shared and importlib.util.find_spec("accelerate") is None:
        raise ModelError(f"{source}: a model on several GPUs needs accelerate: pip install accelerate")
    preparation: Any
    try:
        config = AutoConfig.from_pretrained(place, **options)
        given, _ = PreTrainedConfig.get_config_dict(place, **options)
        if given.get("label2id") and not given.get("id2label"):  # transformers would replace the names
            config.label2id = given["label2id"]
            config.id2label = {number: name for name, number in config.label2id.items()}
        _refuse_foreign_attention(source, config)
        _refuse_quantised(source, config)
        auto_class = _auto_class(source, config)
        if auto_class is AutoModelForImageClassification:
            # `cached_file` returns None only where it is told not to raise.
            preparation = Path(str(cached_file(source, "preprocessor_config.json")))
        else:
            preparation = _tokenizer(place, **options)
        model, report = auto_class.from_pretrained(
            place,
            config=config,
            dtype=dtype,
            attn_implementation=ATTENTION,
            experts_implementation=EXPERTS,
            use_safetensors=None if allow_pickle else True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # reported below, by name
            **({"device_map": "auto"} if shared else {}),
            **options,
        )
    except ModelError:
        raise
    except Exception as error:  # a damaged file makes transformers raise whatever its code meets there
        raise ModelError(_loading_error(source, error)) from error
    if not allow_code:
        _refuse_foreign_code(source, config, model, preparation)
    if used := sorted({name for name in _attentions(model.config) if name != ATTENTION}):
        raise ModelError(
            f"{source}: its attention is {', '.join(used)} although {ATTENTION} was asked for: report this"
        )
    untrained = sorted({*report["missing_keys"], *(key for key, *_ in report["mismatched_keys"])})
    if untrained:
        named = ", ".join(untrained[:4]) + (f" and {len(untrained) - 4} more" if len(untrained) > 4 else "")
        raise ModelError(
            f"{source}: no weights, or none of the right shape, for {named}: not a trained {type(model).__name__}"
        )
    if shared:
        _refuse_offloaded(source, model)
        return model, preparation
    return model.to(device), preparation


def _refuse_offloaded(source: str, model: PreTrainedModel) -> None:
    """Refuse a model of which accelerate keeps weights elsewhere, and loads them layer by layer at every pass."""
    elsewhere = sum(weight.numel() for weight in model.parameters() if weight.is_meta)
    if elsewhere:
        share = elsewhere / sum(weight.numel() for weight in model.parameters())
        raise ModelError(
            f"{source}: {share:.0%} of its weights do not fit the GPUs: give it more, as by --gpus-per-worker, or a "
            "smaller --dtype"
        )


def _refuse_foreign_attention(source: str, config: PreTrainedConfig) -> None:
    """Take the attention that a configuration asks for out of it: the loading asks for its own."""
    for name in _attentions(config):
        if name not in (None, "eager", *ALL_ATTENTION_FUNCTIONS.valid_keys()):
            raise ModelError(
                f"{source}: config.json asks for the attention {name!r}, which is not built into transformers: its "
                'code would come from the hub. Take "attn_implementation" and "_attn_implementation" out of the file'
            )
    config._attn_implementation = ATTENTION  # of the configurations inside too; it would beat the option of loading


def _refuse_foreign_code(
    source: str, config: PreTrainedConfig, model: PreTrainedModel, preparation: PreTrainedTokenizerBase | Path
) -> None:
    """Refuse a model or a tokenizer in whose place transformers has loaded its own."""
    replaced = bool(getattr(config, "auto_map", None)) and type(model).__name__ not in (config.architectures or ())
    tokenizer_map = {} if isinstance(preparation, Path) else preparation.init_kwargs.get("auto_map") or {}
    if replaced or "AutoTokenizer" in tokenizer_map:
        raise ModelError(f"{source}: {NEEDS_CODE}")


def _refuse_quantised(source: str, config: PreTrainedConfig) -> None:
    """Refuse weights that explainers cannot differentiate."""
    quantised: Any = getattr(config, "quantization_config", None)
    if quantised is not None:
        settings = quantised if isinstance(quantised, dict) else quantised.to_dict()
        method = settings.get("quant_method", "by an unknown method")
        raise ModelError(
            f"{source}: its weights are quantised ({method}), and explainers cannot differentiate them: give the model "
            "that it was made from, or save it again after model.dequantize()"
        )


def _attentions(config: PreTrainedConfig) -> list[Any]:
    """The attention that a configuration and those inside it ask for; None where they leave it open."""
    inside = [getattr(config, name, None) for name in config.sub_configs]
    return [
        config._attn_implementation,
        *(a for c in inside if isinstance(c, PreTrainedConfig) for a in _attentions(c)),
    ]


def _tokenizer(source: str, **options: Any) -> PreTrainedTokenizerBase:
    """The tokenizer."""
    tokenizer = AutoTokenizer.from_pretrained(source, **options)
    if set(tokenizer.get_vocab()) <= set(tokenizer.all_special_tokens):
        raise OSError("there is no tokenizer, or its vocabulary is empty")
    return tokenizer


def _auto_class(source: str, config: Any) -> Any:
    """The `transformers` class that loads the head that the model was saved with."""
    auto_classes = {
        ("ForCausalLM", "LMHeadModel"): AutoModelForCausalLM,
        ("ForSequenceClassification",): AutoModelForSequenceClassification,
        ("ForImageClassification",): AutoModelForImageClassification,
    }
    architectures = config.architectures or []
    if is_gguf(source) and type(config) in AutoModelForCausalLM._model_mapping:  # the file names no head
        return AutoModelForCausalLM
    for endings, auto_class in auto_classes.items():
        if any(name.endswith(endings) for name in architectures):
            return auto_class
    expected = ", ".join(f"…{ending}" for endings in auto_classes for ending in endings)
    raise ModelError(
        f"{source}: expected one of {expected}, got {', '.join(architectures) or 'none named'}: what is explained is "
        "one row of outputs for a text, and no outputs for each token or each answer, as of token classification"
    )


def _image_classifier(model: PreTrainedModel, preparation: Path, max_length: int | None) -> ImageClassifier:
    if max_length is not None:
        raise ModelError(f"max length {max_length} is out of place: {type(model).__name__} takes images, not texts")
    return ImageClassifier(model, read_preparation(preparation, model.config.num_channels))


def _loading_error(source: str, error: Exception) -> str:
    """The message: what failed, where, and what to give instead."""
    reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
    if not isinstance(error, OSError | ValueError | ImportError):  # its words alone say little, as those of KeyError
        reason = f"{type(error).__name__}: {reason}"
    if is_gguf(source):
        return f"{source}: transformers cannot read this GGUF file: {reason}. Give a whole file of a decoder it knows"
    files = (
        f"{HOLDS}. If the weights are stored as pickle, save them again by save_pretrained, or use `faithcheck align "
        "--allow-pickle`"
    )
    if "custom code" in reason:
        return f"{source}: {NEEDS_CODE}"
    if Path(source).is_dir():
        return f"{source}: cannot be loaded: {reason}. Expected {files}"
    return (
        f"{source}: neither a local folder nor a model that can be downloaded here: {reason}. "
        f"Without network, give the path of a folder with {files}"
    )


def _ids(text_model: TextModel, count: int) -> Tensor:
    """The ids of so many tokens, ``(count,)``: of ordinary ones, as far as the model knows any."""
    known = range(vocabulary_size(text_model.model))
    ordinary = [i for i in known[: count + len(text_model.special_ids)] if i not in text_model.special_ids]
    return torch.tensor(ordinary or [*known])[torch.arange(count) % len(ordinary or known)]


@torch.no_grad()
def _from_ids(text_model: TextModel, text: Example) -> Tensor:
    """The logits of the unmodified model on the ids of a text, read where the text model reads them."""
    mask = text_model.forward_arguments([text])["attention_mask"]
    logits: Tensor = text_model.model(input_ids=text.features.unsqueeze(0).to(mask.device), attention_mask=mask).logits
    return logits[:, -1] if isinstance(text_model, NextTokenModel) else logits


def _texts_of_every_special_token(text_model: TextModel) -> list[Example]:
    """A text of ordinary tokens, and one in which every special token stands as well."""
    known = vocabulary_size(text_model.model)
    special = torch.tensor(sorted(i for i in text_model.special_ids if i < known), dtype=torch.int64)
    added = torch.tensor([i for i in text_model.tokenizer("")["input_ids"] if i < known], dtype=torch.int64)
    plain = torch.cat([_ids(text_model, 4), added])
    mixed = torch.cat([plain[:2], special, plain[2:]])
    return [
        Example(ids, torch.zeros(len(ids), dtype=torch.bool), ())
        for ids in (plain, mixed)
        if len(ids) <= text_model.max_length
    ]


@torch.no_grad()
def _check_text_model(text_model: TextModel, source: str) -> None:
    """Refuse a text model that computes something else than the unmodified model does from the ids of a text."""
    for text in _texts_of_every_special_token(text_model):
        try:
            right = _from_ids(text_model, text)
            found = text_model(text_model.embed(text.features).unsqueeze(0), **text_model.forward_arguments([text]))
        except Exception as error:  # raised by the model's own code: its message is kept
            raise ModelError(f"{source}: cannot be read at its word embeddings: {error}") from error
        difference, largest = (found - right).abs().max(), right.abs().max()
        if right.isfinite().all() and not difference <= _tolerance(right.dtype) * largest:  # NaN is refused too
            raise ModelError(
                f"{source}: computes something else from the embeddings of a text than from its ids, by "
                f"{difference / largest:.1%} of its largest output: they are not all that it reads of a token"
            )
    _check_masking(text_model, source)


def _tolerance(dtype: torch.dtype) -> float:
    """The largest change of the output, relative to the largest logit, that round-off explains."""
    return max(PADDING_ERROR, 8 * torch.finfo(dtype).eps)


@torch.no_grad()
def _check_masking(text_model: TextModel, source: str) -> None:
    """Refuse a model whose maps would depend on the batch, or that gives NaN where a token is masked."""
    ids = _ids(text_model, 4)
    inputs = text_model.embed(ids).unsqueeze(0)
    of_three, of_four = (Example(ids[:n], torch.zeros(n, dtype=torch.bool), ()) for n in (3, 4))
    three, four = (text_model.forward_arguments(examples) for examples in ([of_three], [of_three, of_four]))
    first_masked = {**three, "attention_mask": torch.tensor([[0, 1, 1]], device=inputs.device)}
    try:
        alone = text_model(inputs[:, :3], **three)
        padded = text_model(inputs.expand(2, -1, -1), **four)[:1]
        without_first = text_model(inputs[:, :3], **first_masked)
    except Exception as error:  # raised by the model's own code: its message is kept
        raise ModelError(f"{source}: cannot be read at its word embeddings: {error}") from error
    difference, largest = (padded - alone).abs().max(), alone.abs().max()
    if not alone.isfinite().all():
        raise ModelError(f"{source}: its output is not finite in {inputs.dtype}")
    if not difference <= _tolerance(inputs.dtype) * largest:
        raise ModelError(
            f"{source}: padding changes its output by {difference / largest:.1%}, so its maps depend on the batch"
        )
    if not without_first.isfinite().all():
        # Llama's softmax runs in float32, where the lowest float64 is −∞: an attention row without keys becomes NaN.
        raise ModelError(f"{source}: its output is NaN in {inputs.dtype} where the first token is masked: use float32")
