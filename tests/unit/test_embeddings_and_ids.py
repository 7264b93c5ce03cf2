"""Text models compute what the unmodified model computes from the ids of a text, whatever it reads of them."""

import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from faithcheck.explainers import GradientTimesInput, LeaveOneOut
from faithcheck.models.pretrained.folder import ModelError
from faithcheck.models.pretrained.loading import load
from faithcheck.models.pretrained.text_model import embeddings_replaced

WORDS = "[PAD] [UNK] [CLS] [SEP] [MASK] a film was good bad".split()
SIZES = {
    "vocab_size": len(WORDS),
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "pad_token_id": 0,
}
ENCODER = {**SIZES, "max_position_embeddings": 66}
ESM = {**ENCODER, "mask_token_id": 4}
GEMMA = {
    **{**SIZES, "max_position_embeddings": 32},
    "vocab_size_per_layer_input": len(WORDS),
    "hidden_size_per_layer_input": 8,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "num_kv_shared_layers": 0,
    "layer_types": ["full_attention"] * 2,
    "laurel_rank": 4,
    "activation_sparsity_pattern": [0.0] * 2,
    "bos_token_id": 2,
    "eos_token_id": 3,
}
QWEN = {**SIZES, "num_key_value_heads": 2, "pad_token_id": None}
GPT2 = {"vocab_size": len(WORDS), "n_embd": 32, "n_layer": 2, "n_head": 2, "pad_token_id": 0}
BY_IDS = {
    "EsmForSequenceClassification": transformers.EsmConfig(**ESM, token_dropout=True, position_embedding_type="rotary"),
    "RobertaForSequenceClassification": transformers.RobertaConfig(**ENCODER),
    "LongformerForSequenceClassification": transformers.LongformerConfig(**ENCODER, attention_window=4),
    "GPT2ForSequenceClassification": transformers.GPT2Config(**GPT2, bos_token_id=2, eos_token_id=3),
    "Qwen2ForSequenceClassification": transformers.Qwen2Config(**QWEN),
    "Gemma3nForCausalLM": transformers.Gemma3nTextConfig(**GEMMA),
}
TEXTS = ["a film was good", "bad [PAD] film [MASK] was"]


def tokenizer(pad="[PAD]"):
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    special = {"unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
    return PreTrainedTokenizerFast(tokenizer_object=words, **special, **({"pad_token": pad} if pad else {}))


def saved(folder, name, config, pad="[PAD]"):
    torch.manual_seed(0)
    model = getattr(transformers, name)(config)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    model.save_pretrained(folder)
    tokenizer(pad).save_pretrained(folder)
    return model.eval()


def right_logits(model, ids):
    """What the unmodified model gives to one text, without padding."""
    logits = model(input_ids=ids.unsqueeze(0)).logits
    return logits[0, -1] if logits.dim() == 3 else logits[0]


@pytest.mark.parametrize("pad", ["[PAD]", None])
@pytest.mark.parametrize("name", BY_IDS)
@torch.no_grad()
def test_the_output_is_that_of_the_ids(name, pad, tmp_path):
    model = saved(tmp_path, name, BY_IDS[name], pad)
    loaded = load(tmp_path)
    examples = [*loaded.encode(TEXTS)]
    case = loaded.case(examples)
    for row, example in zip(case.run(loaded), examples, strict=True):
        torch.testing.assert_close(row, right_logits(model, example.features), rtol=1e-4, atol=1e-5)
    assert loaded.by_ids
    assert not any(module._forward_hooks for module in loaded.modules())


def test_explainers_run_on_the_embeddings_of_a_model_that_reads_ids(tmp_path):
    model = saved(tmp_path, "GPT2ForSequenceClassification", BY_IDS["GPT2ForSequenceClassification"])
    loaded = load(tmp_path)
    case = loaded.case(loaded.encode(TEXTS[:1])[:1])
    ids, mask = case.forward_arguments["input_ids"], case.forward_arguments["attention_mask"]
    target = int(case.target)
    found = LeaveOneOut().attribute(loaded, case)[0]
    with torch.no_grad():
        whole = model(input_ids=ids, attention_mask=mask).logits[0, target]
        for i in range(len(found)):
            without = mask.index_fill(1, torch.tensor([i]), 0)
            right = whole - model(input_ids=ids, attention_mask=without).logits[0, target]
            torch.testing.assert_close(found[i], right, rtol=1e-3, atol=1e-5)
    embeddings = model.get_input_embeddings()(ids).detach().requires_grad_()
    with embeddings_replaced(model, embeddings):
        model(input_ids=ids, attention_mask=mask).logits[0, target].backward()
    right = (embeddings * embeddings.grad).sum(-1)[0].detach()
    torch.testing.assert_close(GradientTimesInput().attribute(loaded, case)[0], right, rtol=1e-4, atol=1e-6)


def test_a_model_that_looks_up_no_embeddings_is_refused():
    model = transformers.BertForSequenceClassification(transformers.BertConfig(**ENCODER)).eval()
    with pytest.raises(ModelError, match="does not look up"), embeddings_replaced(model, torch.zeros(1, 3, 5)):
        model(input_ids=torch.zeros(1, 3, dtype=torch.int64))


def test_special_tokens_are_special_wherever_they_stand(tmp_path):
    saved(tmp_path, "BertForSequenceClassification", transformers.BertConfig(**ENCODER))
    (example,) = load(tmp_path).encode(["a film [SEP] was unknown [MASK]"])
    marked = zip(example.names, example.special_tokens_mask, strict=True)
    special = dict.fromkeys(name for name, is_special in marked if is_special)
    assert list(special) == ["[CLS]", "[SEP]", "[MASK]"]  # and not [UNK], which stands for a word
    assert example.special_tokens_mask.sum() == 4
