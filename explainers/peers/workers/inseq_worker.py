"""The worker of inseq (Sarti et al. 2023, arXiv 2302.13942): attributions of a decoder's next token.

Methods: any of inseq's methods that attributes to the input, such as ``input_x_gradient``, ``integrated_gradients``,
``saliency``; the options are passed to inseq's ``attribute``. inseq explains texts, so the worker turns a case into
texts: every token of every example becomes a separate word, whose embedding is the token's in the case, and the
generated word is the target. The worker asks for attributions of the logit; inseq's default is the probability. A
token's attribution is the sum over the coordinates of its embedding.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor
from worker_protocol import Refused, WorkerAnswer, WorkerRequest, serve  # type: ignore[import-not-found]


def explain(request: WorkerRequest) -> WorkerAnswer:
    """The attribution of each example's target logit at the last token."""
    inseq: Any = importlib.import_module("inseq")
    arguments = request.forward_arguments
    if set(arguments) - {"attention_mask", "last"} or not arguments.get("attention_mask", Tensor()).all():
        raise Refused("inseq explains whole texts: the case must have no padding and no removed tokens")
    embedding_model = request.load()
    output = embedding_model(request.inputs, **arguments).detach()
    model = embedding_model.model
    if not model.can_generate():
        raise Refused(f"inseq explains what a model generates, and {type(model).__name__} generates nothing")
    batch, tokens = request.inputs.shape[:2]
    baseline = request.baseline.flatten(0, 1)
    if (baseline != baseline[0]).any():
        raise Refused("inseq takes one baseline for all tokens, the embedding of the unknown word")
    # The words: one per output, so that the target's number is its word; the unknown and the padding word; the tokens.
    outputs = output.shape[1]
    words = [f"t{i}" for i in range(outputs)] + ["[UNK]", "[PAD]"] + [f"x{i}" for i in range(batch * tokens)]
    of_outputs = torch.zeros(outputs, request.inputs.shape[2], dtype=request.inputs.dtype)
    table = torch.cat([of_outputs, baseline[:1], baseline[:1], request.inputs.flatten(0, 1)])
    embeddings = torch.nn.Embedding(len(table), table.shape[1])
    embeddings.weight.data = table
    model.set_input_embeddings(embeddings)
    for name in ("bos", "eos", "pad"):
        setattr(model.config, f"{name}_token_id", outputs + 1)
    texts = [" ".join(f"x{i * tokens + j}" for j in range(tokens)) for i in range(batch)]
    generated = [f"{text} t{target}" for text, target in zip(texts, request.target.tolist(), strict=True)]
    explainer = inseq.load_model(model, request.method, tokenizer=tokenizer(words), device="cpu")
    with embedding_model.mode():
        result = explainer.attribute(
            texts, generated, attributed_fn="logit", show_progress=False, skip_special_tokens=True, **request.options
        )
    rows = []
    for example in result.sequence_attributions:
        # target_attributions: (tokens and generated tokens, generated tokens, …)
        attribution = example.target_attributions[:tokens, -1]
        rows.append(attribution.sum(-1) if attribution.dim() > 1 else attribution)
    return WorkerAnswer(torch.stack(rows).to(request.inputs.dtype), output)


def tokenizer(words: list[str]) -> Any:
    """A tokenizer that splits at spaces."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    fast: Any = importlib.import_module("transformers").PreTrainedTokenizerFast
    plain: Any = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return fast(tokenizer_object=plain, unk_token="[UNK]", pad_token="[PAD]", eos_token="[PAD]", padding_side="left")


if __name__ == "__main__":
    serve("inseq", explain)
