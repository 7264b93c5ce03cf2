"""Text models at random: a tokenizer, a small model of random weights, a head, and texts that people could write.

Their Leave-One-Out and gradient × input are compared with `plain_maps`, which knows the tokenizer and the model alone.
"""

import random
from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from torch import nn
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from faithcheck.explainers import GradientTimesInput, LeaveOneOut
from faithcheck.explanation import ExplainError, explain
from faithcheck.models.pretrained.folder import ModelError
from faithcheck.models.pretrained.target_choice import with_chosen_output
from faithcheck.models.pretrained.text_model import NextTokenModel
from faithcheck.tests.helpers.small_models import load_widest, spread

MAX_LENGTH = 16  # tokens: many texts are longer
ONE_TOKEN = "a text of one token"
MARKER = "<|user|>"  # a chat's, special by itself
FRAGMENTS = (
    "the film was good don't café cafe\u0301 naïve 这部电影很好看。 これは映画です यह फ़िल्म है। هذا؟ 😊 👩‍👧 🇩🇪 ﬁlm İß "
    "\u200d \u00a0 a\u2028b 1234 x=y; http://a.b/c?d=e THE"
).split(" ")
ENCODER = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
DECODER = {**ENCODER, "num_key_value_heads": 1}
SIZES = {
    "Bert": ENCODER,
    "Roberta": ENCODER,
    "Electra": {**ENCODER, "embedding_size": 8},
    "DistilBert": {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24},
    "ModernBert": ENCODER,
    "GPT2": {"n_embd": 16, "n_layer": 2, "n_head": 2},
    "Bloom": {"hidden_size": 16, "n_layer": 2, "n_head": 2},
    "OPT": {**ENCODER, "ffn_dim": 24, "word_embed_proj_dim": 16},
    "Llama": DECODER,
    "Qwen2": DECODER,
}
CAUSAL = {"GPT2": "GPT2LMHeadModel", **{name: f"{name}ForCausalLM" for name in ("Bloom", "OPT", "Llama", "Qwen2")}}


def drawn_tokenizer(draw: random.Random) -> PreTrainedTokenizerFast:
    """WordPiece, byte-level BPE, or SentencePiece's BPE and Unigram, with and without BOS, EOS and pad."""
    kind = draw.choice(["WordPiece", "bytes", "SentencePiece", "Unigram"])
    special = [name for name in ("<s>", "</s>", "<pad>", "<mask>") if draw.random() < 0.6]
    fallback = kind == "bytes" or draw.random() < 0.5  # a byte stands for a letter that is unknown
    letters = "abcdefghijklmnopqrstuvwxyz.,!'=é影हف"
    pieces = {
        "WordPiece": [*letters, *(f"##{letter}" for letter in letters), "the", "film", "##ood"],
        "bytes": [*sorted(pre_tokenizers.ByteLevel.alphabet()), "Ġt", "he", "è¿"],
        "SentencePiece": [*"▁" + letters, "▁t", "he"],
        "Unigram": [*"▁" + letters, "▁the", "film", "▁film", "oo"],
    }[kind]
    unknown = ["<unk>"] if kind != "bytes" else []
    of_bytes = [f"<0x{i:02X}>" for i in range(256)] if fallback and kind in ("SentencePiece", "Unigram") else []
    pieces = [*unknown, *draw.sample(special, len(special)), *of_bytes, *dict.fromkeys(pieces)]
    ids = {piece: i for i, piece in enumerate(pieces)}
    if kind == "WordPiece":
        tokenizer = Tokenizer(models.WordPiece(ids, unk_token="<unk>"))
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=draw.random() < 0.5)
        tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    elif kind == "bytes":
        tokenizer = Tokenizer(models.BPE(ids, [("Ġ", "t"), ("h", "e"), ("è", "¿")]))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=draw.random() < 0.5)
        tokenizer.decoder = decoders.ByteLevel()
    elif kind == "SentencePiece":
        merges = [("▁", "t"), ("h", "e")]
        tokenizer = Tokenizer(models.BPE(ids, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=fallback))
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        scores = [(piece, -float(i)) for piece, i in ids.items()]
        tokenizer = Tokenizer(models.Unigram(scores, unk_id=0, byte_fallback=fallback))
        tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.NFKC(), pre_tokenizers.Metaspace()
    added = [(name, name in special and draw.random() < 0.8) for name in ("<s>", "</s>")]
    template = " ".join(["<s>"] * added[0][1] + ["$A"] + ["</s>"] * added[1][1])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=template, special_tokens=[(name, ids[name]) for name, is_added in added if is_added]
    )
    roles = {"<s>": "bos_token", "</s>": "eos_token", "<pad>": "pad_token", "<mask>": "mask_token"}
    sides = {side: draw.choice(["left", "right"]) for side in ("padding_side", "truncation_side")}
    named = {roles[name]: name for name in special} | ({"unk_token": "<unk>"} if unknown else {})
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, additional_special_tokens=[MARKER], **named, **sides)


def drawn_model(draw: random.Random, tokenizer: PreTrainedTokenizerFast) -> transformers.PreTrainedModel:
    """A classifier with one to four outputs, or a decoder, with random weights."""
    family = draw.choice([*SIZES])
    causal = family in CAUSAL and draw.random() < 0.5
    labels = {} if causal else {"num_labels": draw.randint(1, 4)}
    ids = {f"{role}_token_id": getattr(tokenizer, f"{role}_token_id") for role in ("pad", "bos", "eos")}
    if ids["pad_token_id"] is None and family in ("Roberta", "OPT", "Electra"):  # not made without it
        ids["pad_token_id"] = 1
    config = getattr(transformers, f"{family}Config")(
        **SIZES[family],
        **ids,
        **labels,
        vocab_size=len(tokenizer) + draw.choice([2, 5]),  # AutoTokenizer may add an end-of-text token
        **({} if family in ("GPT2", "Bloom") else {"max_position_embeddings": MAX_LENGTH + 8}),
    )
    torch.manual_seed(draw.randrange(2**31))
    model = getattr(transformers, CAUSAL[family] if causal else f"{family}ForSequenceClassification")(config).double()
    spread(model)
    return model.eval()


def drawn_text(draw: random.Random, tokenizer: PreTrainedTokenizerFast) -> str:
    """Any characters, words of many scripts and special tokens; sometimes empty or longer than the model takes."""
    if draw.random() < 0.05:
        return draw.choice(["", " ", "\n\t"])

    def fragment() -> str:
        kind = draw.random()
        if kind < 0.15:
            return draw.choice(tokenizer.all_special_tokens)
        if kind < 0.3:
            return "".join(chr(draw.choice([draw.randrange(0xD800), draw.randrange(0xE000, 0x110000)])) for _ in "ab")
        return draw.choice(FRAGMENTS)

    return draw.choice(["", " ", " ", "  "]).join(fragment() for _ in range(draw.choice([1, 2, 3, 5, 12])))


def plain_maps(model, tokenizer, text: str, output: int | None, against: int | None) -> dict[str, torch.Tensor]:
    """LOO, gradient × input and the outputs of one text, by the tokenizer and the unmodified model alone."""
    ids = tokenizer(text, truncation=True, max_length=MAX_LENGTH, return_tensors="pt")["input_ids"]
    embeddings = model.get_input_embeddings()(ids).detach().requires_grad_()

    def outputs(mask):
        hook = model.get_input_embeddings().register_forward_hook(lambda *_: embeddings)
        logits = model(input_ids=ids, attention_mask=mask).logits
        hook.remove()
        row = logits[0, -1] if logits.dim() == 3 else logits[0]
        return row if against is None else row - row[against]

    mask = torch.ones_like(ids)
    whole = outputs(mask)
    output = int(whole.argmax()) if output is None else output
    whole[output].backward()
    left = [outputs(mask.index_fill(1, torch.tensor([i]), 0))[output] for i in range(ids.shape[1])]
    return {
        "loo": torch.stack([whole[output] - one for one in left]).detach(),
        "gradient_x_input": (embeddings * embeddings.grad).sum(-1)[0].detach(),
        "outputs": whole.detach(),
    }


def largest_difference(seed: int, folder: Path) -> tuple[str, float]:
    """What was drawn, and the largest difference of its maps from `plain_maps`, relative to outputs and maps.

    The first text goes by `explain`, and all that can be explained as one padded batch.

    Raises:
        AssertionError: the first text was refused for another reason than `expected_refusal`, or not for it.
        ModelError: the model was refused.
    """
    draw = random.Random(seed)
    tokenizer = drawn_tokenizer(draw)
    model = drawn_model(draw, tokenizer)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    loaded = load_widest(folder, MAX_LENGTH)
    tokenizer = AutoTokenizer.from_pretrained(folder)  # some families have a class of their own, which splits otherwise
    model.to(loaded.model.dtype)
    decoder = isinstance(loaded, NextTokenModel)
    count = len(tokenizer) if decoder else model.config.num_labels
    output = draw.randrange(count) if decoder or draw.random() < 0.5 else None
    against = draw.choice([None, (output + 1) % count]) if output is not None and count > 1 else None
    named = [None if i is None else f"number={i}" for i in (output, against)]
    texts = [drawn_text(draw, tokenizer) for _ in range(3)]
    reasons = [expected_refusal(tokenizer, text, decoder) for text in texts]
    kept = [text for text, reason in zip(texts, reasons, strict=True) if not reason]
    right = [plain_maps(model, tokenizer, text, output, against) for text in kept]
    what = f"{type(model).__name__}, {type(tokenizer.backend_tokenizer.model).__name__}, {texts}, {reasons}"
    explainers, differences = [LeaveOneOut(), GradientTimesInput()], []
    try:  # of one token LOO alone has no map, which `explain` says in its row
        shown, refusal = explain(loaded, texts[0], explainers, *named), ""
        if not reasons[0]:
            differences.append(difference({one.explainer: torch.tensor(one.values) for one in shown.maps}, right[0]))
            marked = [feature.special for feature in shown.features]
            assert marked == special_tokens(tokenizer, texts[0], decoder), f"{what}: special are {marked}"
    except (ExplainError, ModelError) as error:
        refusal = str(error)
    assert reasons[0] in (refusal or ONE_TOKEN), f"{what}: {refusal or 'not refused'}"
    assert reasons[0] or not refusal, f"{what}: {refusal}"
    if kept:
        chosen = with_chosen_output(loaded, *named)
        case = chosen.case([*chosen.encode(kept)])
        maps = {explainer.name: explainer.attribute(chosen, case) for explainer in explainers}
        for row, of_text in enumerate(right):
            differences.append(difference({name: one[row] for name, one in maps.items()}, of_text))
    return what, max(differences, default=0.0)


def difference(maps: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> float:
    """The largest difference of maps from the right ones, relative to outputs and maps."""
    largest = []
    for name, found in maps.items():
        expected = nn.functional.pad(right[name].double(), (0, len(found) - len(right[name])))
        scale = max(right["outputs"].abs().max(), expected.abs().max())
        largest.append(float((found.double() - expected).abs().max() / scale))
    return max(largest)


def expected_refusal(tokenizer: PreTrainedTokenizerFast, text: str, decoder: bool) -> str:
    """Words of the reason for which a text has no maps; empty if it has some."""
    if not text.strip():
        return "the text is empty"
    whole = tokenizer(text)["input_ids"]
    if decoder and len(whole) > MAX_LENGTH:
        return f"more than the {MAX_LENGTH} tokens"
    special = special_tokens(tokenizer, text, decoder)
    if all(special):
        return "all of them are special"
    return ONE_TOKEN if len(special) == 1 else ""


def special_tokens(tokenizer: PreTrainedTokenizerFast, text: str, decoder: bool) -> list[bool]:
    """Which tokens of a text are special, wherever they stand; of a decoder the last one too, at which it is read."""
    ids = tokenizer(text, truncation=True, max_length=MAX_LENGTH)["input_ids"]
    special = [i in tokenizer.all_special_ids and i != tokenizer.unk_token_id for i in ids]
    return [*special[:-1], True] if decoder and special else special
