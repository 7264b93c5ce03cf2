"""Pairs that compute the same weights in another way can fail.

They fail on a wrong change, and on an explainer that depends on how the weights are computed. One section a family:
attention, batching, sharing.
"""

from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from torch import nn

from faithcheck import Check, Settings
from faithcheck.explainers import LRP, AttentionRollout, AttnLRP, GradientTimesInput
from faithcheck.explainers.lrp.attnlrp import ATTNLRP
from faithcheck.explainers.lrp.modified_gradient import modified, stabilised
from faithcheck.explainers.lrp.rules.attention import attention_rule
from faithcheck.explainers.lrp.rules.rearrangements import gradient_rule
from faithcheck.explainers.protocol import input_gradient, per_feature
from faithcheck.models.architectures.base_models import ARCHITECTURES, BASE_MODELS, layers
from faithcheck.models.case import select_target
from faithcheck.models.pair import registered_pairs
from faithcheck.models.pairs import attention_implementations as attention
from faithcheck.models.pairs import batching_and_padding as batching
from faithcheck.models.pairs import sharing_of_modules_and_weights as sharing

PAIRS = registered_pairs()


def check(explainer, pair):
    return Check("invariance", explainer, PAIRS[pair]).run(Settings())


def refused(pair, base_model, change):
    """Whether equivalence fails if this change makes g of f."""

    def build(seed, dtype, device):
        f = BASE_MODELS[base_model].model(seed, dtype, device)
        with torch.no_grad():
            return f, change(deepcopy(f)).eval()

    record = Check("equivalence", None, replace(PAIRS[pair], build=build)).run(Settings())
    assert record.status in ("holds", "broken claim"), record.detail
    return record.status == "broken claim"


def lrp(**rules):
    """AttnLRP with other rules; it claims invariance, too."""
    return LRP("attnlrp", {**ATTNLRP, **rules})


def divided(parts):
    return lambda call: stabilised(call.value(), 0, parts=parts)


# --- attention -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("base_model", ARCHITECTURES)
def test_a_plain_rule_for_sdpa_breaks_eager_against_sdpa(base_model):
    assert check(AttnLRP(), f"attention.sdpa_{base_model}").status == "holds"
    broken = check(lrp(scaled_dot_product_attention=gradient_rule), f"attention.sdpa_{base_model}")
    assert broken.status == "broken claim"
    assert broken.gap > 0.01  # no halving of QKᵀ or of AV


@pytest.mark.parametrize("base_model", [name for name in ARCHITECTURES if ARCHITECTURES[name].decoder])
def test_a_rule_for_sdpa_that_ignores_the_causal_flag_breaks_flag_against_mask(base_model):
    def forgetful(call):
        return attention_rule(replace(call, kwargs={**call.kwargs, "is_causal": False}))

    assert (
        check(lrp(scaled_dot_product_attention=forgetful), f"attention.causal_flag_{base_model}").status
        == "broken claim"
    )


def test_a_rule_for_sdpa_that_divides_by_repeated_heads_breaks_grouped_against_expanded():
    def by_group(call):
        groups = 2 if call.kwargs.get("enable_gqa") else 1
        return lambda: stabilised(attention_rule(call)(), 0, parts=groups)

    assert check(AttnLRP(), "attention.expanded_sdpa_llama").status == "holds"
    assert check(lrp(scaled_dot_product_attention=by_group), "attention.expanded_sdpa_llama").status == "broken claim"


def test_rules_that_divide_relevance_by_the_number_of_parts_break_one_map_against_three():
    assert check(lrp(cat=divided(3)), "attention.separate_gpt2").status == "broken claim"
    assert check(lrp(narrow=divided(3)), "attention.fused_bert").status == "broken claim"
    assert check(lrp(expand=divided(2)), "attention.expanded_llama").status == "broken claim"


def swapped(embedding_model):
    for layer in layers(embedding_model):
        layer.replace(layer.query_key_value, attention.Concatenated((layer.query, layer.value, layer.key)))
    return embedding_model


def interleaved(embedding_model):
    """Heads a and b repeated as a b a b, not as a a b b."""
    attention.expanded(embedding_model)
    for layer in layers(embedding_model):
        for weight in (layer.key.weight, layer.value.weight):
            weight.copy_(weight.unflatten(0, (2, 2, -1)).transpose(0, 1).flatten(0, 2))
    return embedding_model


def rescaled(embedding_model):
    attention.sdpa(embedding_model)
    for layer in layers(embedding_model):
        layer.attention.scaling *= 1.001
    return embedding_model


def test_a_wrong_attention_is_refused():
    assert not refused("attention.separate_gpt2", "gpt2", attention.separate)
    assert refused("attention.separate_gpt2", "gpt2", swapped)
    assert not refused("attention.expanded_llama", "llama", attention.expanded)
    assert refused("attention.expanded_llama", "llama", interleaved)
    assert refused("attention.sdpa_bert", "bert", rescaled)


# --- batching --------------------------------------------------------------------------------------------------------


def averaged(dimension):
    """The identity rule of an activation, its factor averaged over a dimension."""

    def rule(call):
        (x,) = call.operands_with_relevance()
        value = call.value()
        ratio = (value / x).detach().mean(dimension, keepdim=True)
        return modified(x, value, lambda gradient: gradient * ratio)

    return rule


def test_a_rule_that_averages_over_positions_breaks_padded_against_unpadded():
    over_positions = lrp(GELUActivation=averaged(1))
    assert check(over_positions, "batching.padded_bert").status == "broken claim"
    assert check(over_positions, "batching.single_bert").status == "holds"


def test_a_rule_that_averages_over_the_batch_breaks_batched_against_single():
    over_the_batch = lrp(GELUActivation=averaged(0))
    assert check(over_the_batch, "batching.single_bert").status == "broken claim"
    assert check(over_the_batch, "batching.padded_bert").status == "holds"


def unmasked(embedding_model):
    """The same model, which ignores its attention mask."""

    def without_mask(module, args, inputs):
        # A mask of ones: without a mask, transformers takes repeated positions for several texts, and separates them.
        return args, {**inputs, "attention_mask": torch.ones_like(inputs["attention_mask"])}

    embedding_model.model.register_forward_pre_hook(without_mask, with_kwargs=True)
    return embedding_model


def test_padding_that_is_not_masked_is_refused():
    assert not refused("batching.padded_bert", "bert", batching.padded)
    assert refused("batching.padded_bert", "bert", lambda model: batching.padded(unmasked(model)))


def test_a_decoder_needs_the_mask_for_padding_on_the_left_and_not_for_padding_on_the_right():
    assert refused("batching.left_padded_llama", "llama", lambda model: batching.left_padded(unmasked(model)))
    assert not refused("batching.padded_llama", "llama", lambda model: batching.padded(unmasked(model)))


class Centred(nn.Module):
    """The model of the inputs minus their mean over the batch."""

    def __init__(self, embedding_model):
        super().__init__()
        self.embedding_model = embedding_model

    def forward(self, inputs):
        return self.embedding_model(inputs - inputs.mean(0))


def test_a_model_that_mixes_examples_is_refused_with_itself_one_by_one():
    assert not refused("batching.single_bert", "bert", batching.single)
    assert refused("batching.single_bert", "bert", lambda embedding_model: batching.single(Centred(embedding_model)))


def test_the_size_of_rollouts_violation_on_a_padded_model_is_predicted():
    pair = PAIRS["batching.padded_bert"]
    assert check(AttentionRollout(), pair.name).status == "predicted violation"
    key = ("invariance", "attention_rollout")

    def unshifted(f, g, case):
        return 1.01 * batching.shifted_rollout(f, g, case)

    mispredicted = replace(pair, expected={**pair.expected, key: replace(pair.expected[key], predict=unshifted)})
    assert Check("invariance", AttentionRollout(), mispredicted).run(Settings()).status == "inconclusive"


# --- sharing ---------------------------------------------------------------------------------------------------------


class ByModule:
    """The identity rule for activations by hooks, which keep the last factor f(x)/x of each module."""

    name = "by_module"
    claims = frozenset({"invariance"})

    def attribute(self, model, case):
        last, handles = {}, []

        def keep_factor(module, args, output):
            last[module] = (output / args[0]).detach()

        def multiply_gradient(module, gradients, at_output):
            return (at_output[0] * last[module],)

        for module in model.modules():
            if type(module).__name__ == "GELUActivation":
                handles += [
                    module.register_forward_hook(keep_factor),
                    module.register_full_backward_hook(multiply_gradient),
                ]
        try:
            return per_feature(case.inputs * input_gradient(model, case))
        finally:
            for handle in handles:
                handle.remove()


@pytest.mark.parametrize("pair", ["sharing.activations_bert", "sharing.layers_roberta", "sharing.layers_vit"])
def test_state_by_module_breaks_shared_against_separate_modules(pair):
    assert check(ByModule(), pair).status == "broken claim"


def test_state_by_module_holds_where_no_module_is_shared():
    assert check(ByModule(), "attention.fused_bert").status == "holds"


class EmbeddingSaliency:
    """Weight × gradient of each token's embedding row; tied weights also get a gradient from the output."""

    name = "embedding_saliency"
    claims = frozenset({"invariance"})

    def attribute(self, model, case):
        weight = model.model.model.get_input_embeddings().weight
        outputs = select_target(case.run(model), case.target)
        gradients = [torch.autograd.grad(output, weight, retain_graph=True)[0] for output in outputs]
        by_token = torch.stack([(weight * gradient).sum(1) for gradient in gradients]).detach()
        return (case.inputs * by_token.unsqueeze(1)).sum(2)


@pytest.mark.parametrize("base_model", [name for name in ARCHITECTURES if ARCHITECTURES[name].decoder])
def test_gradients_by_weight_break_tied_against_untied_embeddings(base_model):
    assert check(GradientTimesInput(), f"sharing.embeddings_{base_model}").status == "holds"
    assert check(EmbeddingSaliency(), f"sharing.embeddings_{base_model}").status == "broken claim"


def test_the_models_of_sharing_pairs_differ_in_the_number_of_objects():
    for name, pair in PAIRS.items():
        if name.startswith("sharing."):
            counts = [objects(model) for model in pair.build(0, torch.float64, torch.device("cpu"))]
            assert counts[0] > counts[1] if name.startswith("sharing.activations") else counts[0] < counts[1], name


def objects(model):
    """How many modules and weights a model has, each object counted once."""
    return len(list(model.modules())) + len(list(model.parameters()))


def test_layers_that_are_not_equal_are_refused():
    def differing(embedding_model):
        stack = sharing.stack(embedding_model)
        stack[1] = deepcopy(stack[1])
        next(stack[1].parameters()).mul_(1.001)
        return embedding_model

    assert not refused("sharing.layers_bert", "bert", lambda embedding_model: embedding_model)
    assert refused("sharing.layers_bert", "bert", differing)


class Times(nn.Module):
    """A factor that its ``repr`` does not show."""

    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, x):
        return self.factor * x


def test_modules_of_a_kind_with_other_settings_are_not_shared():
    model = sharing.activations(nn.Sequential(Times(2.0), Times(3.0), Times(2.0)))
    assert model[0] is model[2] is not model[1]
    assert model(torch.ones(())) == 12
