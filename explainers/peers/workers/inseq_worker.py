"""The worker of inseq (Sarti et al. 2023, arXiv 2302.13942): what a decoder's next token is attributed to.

Methods: any of inseq's that attributes to the input, such as ``input_x_gradient``, ``integrated_gradients``,
``saliency``; ``options`` go to ``attribute``. inseq explains texts, so a case is put to it as one: every token of every
example is a word of its own, whose embedding is the case's, and what is generated is the word of the target's number.
The logit is attributed, not inseq's default, the probability. A token's attribution is the sum over its embedding.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor
from worker_protocol import Answer, Refused, Request, serve  # type: ignore[import-not-found]


def explain(request: Request) -> Answer:
    """The attribution of each example's target logit at the last token."""
    inseq: Any = importlib.import_module("inseq")
    if (
        set(request.forward_arguments) - {"attention_mask", "last"}
        or not request.forward_arguments.get("attention_mask", Tensor()).all()
    ):
        raise Refused("inseq is given whole texts: no padding, no removed tokens")
    embedding_model = request.load()
    output = embedding_model(request.inputs, **request.forward_arguments).detach()
    model = embedding_model.model
    if not model.can_generate():
        raise Refused(f"inseq explains what a model generates, and {type(model).__name__} generates nothing")
    batch, tokens = request.inputs.shape[:2]
    baseline = request.baseline.flatten(0, 1)
    if (baseline != baseline[0]).any():
        raise Refused("inseq takes one baseline for every token, that of the unknown word")
    # Words: the logits' own numbers for the targets, then the unknown and the padding word, then the case's tokens.
    outputs = output.shape[1]
    words = [f"t{i}" for i in range(outputs)] + ["[UNK]", "[PAD]"] + [f"x{i}" for i in range(batch * tokens)]
    rest = torch.zeros(outputs, request.inputs.shape[2], dtype=request.inputs.dtype)
    table = torch.cat([rest, baseline[:1], baseline[:1], request.inputs.flatten(0, 1)])
    embeddings = torch.nn.Embedding(len(table), table.shape[1])
    embeddings.weight.data = table
    model.set_input_embeddings(embeddings)
    for name in ("bos", "eos", "pad"):
        setattr(model.config, f"{name}_token_id", outputs + 1)
    texts = [" ".join(f"x{i * tokens + j}" for j in range(tokens)) for i in range(batch)]
    generated = [f"{text} t{target}" for text, target in zip(texts, request.target.tolist(), strict=True)]
    explainer = inseq.load_model(model, request.method, tokenizer=tokenizer(words), device="cpu")
    with embedding_model.mode():
        found = explainer.attribute(
            texts, generated, attributed_fn="logit", show_progress=False, skip_special_tokens=True, **request.options
        )
    rows = []
    for example in found.sequence_attributions:
        attribution = example.target_attributions  # (tokens and what was generated, generated, …)
        attribution = attribution[:tokens, -1]
        rows.append(attribution.sum(-1) if attribution.dim() > 1 else attribution)
    return Answer(torch.stack(rows).to(request.inputs.dtype), output)


def tokenizer(words: list[str]) -> Any:
    """A tokenizer that splits at spaces."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    fast: Any = importlib.import_module("transformers").PreTrainedTokenizerFast
    plain: Any = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return fast(tokenizer_object=plain, unk_token="[UNK]", pad_token="[PAD]", eos_token="[PAD]", padding_side="left")


if __name__ == "__main__":
    serve("inseq", explain)
