"""Transforms change the weights that they name and no others; a wrong change is detected; ε > 0 detects a right one."""

import re
from copy import deepcopy
from dataclasses import replace
from functools import partial

import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch import nn
from torch.overrides import TorchFunctionMode

from faithcheck import Check, Settings
from faithcheck.explainers import CPLRP, AttnLRP
from faithcheck.models import pair
from faithcheck.models.architectures.architecture import BaseModel, random_features, random_weights
from faithcheck.models.architectures.base_models import ARCHITECTURES, BASE_MODELS, architecture_of, layers
from faithcheck.models.architectures.bert import bert
from faithcheck.models.architectures.gpt2 import gpt2
from faithcheck.models.architectures.llama import llama
from faithcheck.models.architectures.transformer_layer import as_module
from faithcheck.models.pairs import basis_of_queries_keys_values as basis
from faithcheck.models.pairs import folding_of_norms_and_biases as folding
from faithcheck.models.pairs import permutation_of_heads_and_neurons as permutation
from faithcheck.models.pairs import rescaling_of_neurons_and_logits as rescaling
from faithcheck.models.pretrained.folder import ModelError
from faithcheck.models.transform import (
    blueprint,
    every_layer,
    function_preserving_transform,
    register_checkpoint,
    registered_transforms,
)
from faithcheck.options import OptionError
from faithcheck.options.pairs import choose_checkpoint, describe_checkpoint
from faithcheck.tests.helpers import small_models
from faithcheck.tests.helpers.small_models import DECODERS, IMAGE_CLASSIFIERS, save, tokenizer

TRANSFORMS = registered_transforms()
CPU = torch.device("cpu")
CHANGES = {
    "basis.query_key": {"query", "key"},
    "basis.value_output": {"value", "output"},
    "permutation.heads": {"query", "key", "value", "output"},
    "permutation.neurons": {"up", "down"},
    "rescaling.relu_neurons": {"up", "down"},
    "rescaling.gated_neurons": {"up", "down"},
    "rescaling.logits": {"query", "scaling"},
    "rescaling.key_bias": {"key"},
    "folding.norm": {"norms", "query", "key", "value", "up"},
    "folding.value_bias": {"value", "output"},
}
ON_BASE_MODELS = [(name, base_model) for name in CHANGES for base_model in TRANSFORMS[name].base_models]
ON_ONE_BASE_MODEL = {name: base_model for name, base_model in ON_BASE_MODELS if base_model != "bert_trained"}


def built(name, base_model, seed=0):
    return TRANSFORMS[name].on(BASE_MODELS[base_model]).build(seed, torch.float64, CPU)


def tensors(layer):
    """The weights of a layer's parts, by the part's name."""
    maps = {part: [getattr(layer, part)] for part in ("query", "key", "value", "output", "down")}
    weights = {part: [x for m in views for x in (m.weight, m.bias)] for part, views in {**maps, "up": layer.up}.items()}
    weights["norms"] = [x for norm, _ in layer.norms for x in norm.parameters()]
    weights["scaling"] = [torch.tensor(layer.attention.scaling)]
    return {part: [x for x in values if x is not None] for part, values in weights.items()}


def differ(left, right):
    return any(float((x - y).detach().abs().max()) > 1e-3 for x, y in zip(left, right, strict=True))


# --- the change ------------------------------------------------------------------------------------------------------


POST_NORM = [
    name for name in TRANSFORMS["folding.norm"].base_models if not next(layers(blueprint(BASE_MODELS[name]))).norms
]
"""The base models in which the residual connection reads every norm but the last."""


@pytest.mark.parametrize("base_model", POST_NORM)
def test_in_post_layer_norm_models_only_the_last_norm_is_folded(base_model):
    f, g = built("folding.norm", base_model)
    weights = zip(f.named_parameters(), g.parameters(), strict=True)
    changed = {name.rpartition(".")[0] for (name, x), y in weights if not torch.equal(x, y)}
    norm, head = sorted(map(f.get_submodule, changed), key=lambda module: not isinstance(module, nn.LayerNorm))
    assert norm is list(layers(f))[-1].norms[0].norm
    assert not any(module is head for layer in layers(f) for module in layer.module.modules())


@pytest.mark.parametrize(
    ("name", "base_model"), [on for on in ON_BASE_MODELS if on[0] != "folding.norm" or on[1] not in POST_NORM]
)
def test_a_transform_changes_in_every_layer_the_weights_that_it_names_and_no_others(name, base_model):
    f, g = built(name, base_model)
    for old, new in zip(layers(f), layers(g), strict=True):
        before, after = tensors(old), tensors(new)
        changed = {part for part in before if differ(before[part], after[part])}
        assert changed == CHANGES[name]
        assert all(
            torch.equal(x, y) for p in before if p not in changed for x, y in zip(before[p], after[p], strict=True)
        )
    inside = {id(x) for model in (f, g) for layer in layers(model) for x in layer.module.parameters()}
    outside = [(x, y) for x, y in zip(f.parameters(), g.parameters(), strict=True) if id(x) not in inside]
    assert outside
    assert all(torch.equal(x, y) for x, y in outside)


@pytest.mark.parametrize("base_model", TRANSFORMS["folding.product"].base_models)
def test_a_map_is_replaced_by_two_maps_with_the_same_product(base_model):
    f, g = built("folding.product", base_model)
    pairs = [m for m in g.modules() if isinstance(m, nn.Sequential) and [type(x) for x in m] == [nn.Linear] * 2]
    for layer, (first, second) in zip(layers(f), pairs, strict=True):
        assert first.bias is None
        assert torch.allclose(second.weight @ first.weight, layer.up[0].weight)
        assert differ([first.weight], [torch.eye(len(first.weight))])


def test_a_cycle_moves_every_element():
    for size in (2, 3, 24):
        assert (permutation.cycle(size) != torch.arange(size)).all()
        assert sorted(permutation.cycle(size).tolist()) == list(range(size))


def test_bases_are_well_conditioned():
    torch.manual_seed(0)  # of few random numbers, one draw in forty has none below 0.9, or none above 1.1
    for draw in (basis.well_conditioned, basis.commuting_with_rotations):
        singular = torch.linalg.svdvals(draw(16))
        assert 0.5 <= singular.min() < 0.9 < 1.1 < singular.max() <= 2


@pytest.mark.parametrize("base_model", BASE_MODELS)
def test_the_base_model_is_not_changed(base_model):
    def state(model):
        return [*model.parameters(), *(torch.tensor(layer.attention.scaling) for layer in layers(model))]

    fresh = state(BASE_MODELS[base_model].model(0, torch.float64, CPU))
    for name in ("folding.product", *CHANGES):
        if base_model in TRANSFORMS[name].base_models:
            f, _ = built(name, base_model)
            for model in (f, BASE_MODELS[base_model].model(0, torch.float64, CPU)):
                assert all(torch.equal(x, y) for x, y in zip(fresh, state(model), strict=True))


def test_a_change_depends_on_its_seed_alone_and_leaves_the_global_generator_unchanged():
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    first, same_seed, other_seed = (built("basis.query_key", "bert_trained", seed)[1] for seed in (0, 0, 1))
    assert torch.rand(1) == expected
    assert all(torch.equal(x, y) for x, y in zip(first.parameters(), same_seed.parameters(), strict=True))
    assert not all(torch.equal(x, y) for x, y in zip(first.parameters(), other_seed.parameters(), strict=True))


# --- a wrong change is refused ---------------------------------------------------------------------------------------


def refused(change, base_model):
    """Whether equivalence fails if this change makes g of f."""
    record = Check("equivalence", None, replace(TRANSFORMS["basis.query_key"], change=change).on(base_model)).run(
        Settings()
    )
    assert record.status in ("holds", "broken claim"), record.detail
    return record.status == "broken claim"


def not_inverted(embedding_model):
    """W_Q → M W_Q and W_K → M W_K."""
    for layer in layers(embedding_model):
        matrices = torch.stack([basis.well_conditioned(4) for _ in range(layer.heads)])
        basis.multiply(matrices, layer.query)
        basis.multiply(matrices, layer.key)
    return embedding_model


def not_commuting(embedding_model):
    """Any M, as if there were no rotary positions."""
    for layer in layers(embedding_model):
        matrices = torch.stack([basis.well_conditioned(4) for _ in range(layer.key_value_heads)])
        basis.multiply(matrices.repeat_interleave(2, 0), layer.query)
        basis.multiply(matrices.inverse().mT, layer.key)
    return embedding_model


def wrong_pairs(embedding_model):
    """An M that commutes with rotations of coordinates 2i and 2i + 1, not of i and i + size/2."""
    for layer in layers(embedding_model):
        order = torch.tensor([0, 2, 1, 3])
        matrices = torch.stack([basis.commuting_with_rotations(4)[order][:, order] for _ in range(2)])
        basis.multiply(matrices.repeat_interleave(2, 0), layer.query)
        basis.multiply(matrices.inverse().mT, layer.key)
    return embedding_model


def heads_without_groups(embedding_model):
    """All heads of queries shifted by one, away from the keys that they share."""
    for layer in layers(embedding_model):
        order = torch.arange(layer.heads).roll(1)
        permutation.reorder(layer.query, order)
        permutation.reorder_inputs(layer.output, order)
    return embedding_model


def values_stay(embedding_model):
    for layer in layers(embedding_model):
        order = permutation.cycle(layer.heads)
        for linear in (layer.query, layer.key):
            permutation.reorder(linear, order)
        permutation.reorder_inputs(layer.output, order)
    return embedding_model


def gate_stays(embedding_model):
    for layer in layers(embedding_model):
        order = permutation.cycle(len(layer.up[0].weight))
        permutation.reorder(layer.up[1], order)
        permutation.reorder_inputs(layer.down, order)
    return embedding_model


def negative(embedding_model):
    """ReLU neurons times −1."""
    for layer in layers(embedding_model):
        rescaling.multiply(layer.up[0], -1.0)
        layer.down.weight.neg_()
    return embedding_model


def without_resetting(embedding_model):
    for layer in layers(embedding_model):
        rescaling.multiply(layer.query, layer.attention.scaling)
    return embedding_model


def without_query_bias(embedding_model):
    for layer in layers(embedding_model):
        layer.query.bias.zero_()
    return embedding_model


def dropped_value_bias(embedding_model):
    for layer in layers(embedding_model):
        layer.value.bias.zero_()
    return embedding_model


def dropped_beta(embedding_model):
    for layer in layers(embedding_model):
        for norm, _ in layer.norms:
            norm.bias.zero_()
    return folding.norm(embedding_model)


def key_bias_under_rotary_positions(embedding_model):
    for layer in layers(embedding_model):
        layer.key.bias.zero_()
    return embedding_model


BIASED = BaseModel("llama_biased", random_weights(partial(llama, attention_bias=True)), random_features())


@pytest.mark.parametrize(
    ("change", "base_model"),
    [
        (not_inverted, BASE_MODELS["bert"]),
        (not_commuting, BASE_MODELS["llama"]),
        (wrong_pairs, BASE_MODELS["llama"]),
        (heads_without_groups, BASE_MODELS["llama"]),
        (values_stay, BASE_MODELS["gpt2"]),
        (gate_stays, BASE_MODELS["llama"]),
        (negative, BASE_MODELS["bert_relu"]),
        (rescaling.relu_neurons, BASE_MODELS["bert"]),  # its neurons are GELUs
        (without_resetting, BASE_MODELS["vit"]),
        (without_query_bias, BASE_MODELS["bert"]),
        (dropped_value_bias, BASE_MODELS["roberta"]),
        (dropped_beta, BASE_MODELS["gpt2"]),
        (key_bias_under_rotary_positions, BIASED),
    ],
    ids=lambda argument: getattr(argument, "name", getattr(argument, "__name__", "")),
)
def test_a_wrong_change_is_refused(change, base_model):
    assert refused(change, base_model)


@pytest.mark.parametrize("name", [name for name in CHANGES if not TRANSFORMS[name].unmet(blueprint(BIASED))])
def test_biases_are_changed_too(name):
    assert not refused(TRANSFORMS[name].change, BIASED)


def test_the_bias_of_shared_values_is_folded_for_every_query_head():
    assert not TRANSFORMS["folding.value_bias"].unmet(blueprint(BIASED))
    assert TRANSFORMS["rescaling.key_bias"].unmet(blueprint(BIASED)) == ["positions that do not rotate keys"]


# --- ε > 0 breaks invariance -----------------------------------------------------------------------------------------

OF_LOGITS = {"basis.query_key", "rescaling.logits", "rescaling.key_bias"}  # in CP-LRP the logits have no relevance


@pytest.mark.slow
@pytest.mark.parametrize(("name", "base_model"), ON_ONE_BASE_MODEL.items())
def test_a_positive_epsilon_breaks_invariance_and_the_limit_zero_does_not(name, base_model):
    """Permutations alone are invariant for every ε; CP-LRP has no relevance before the softmax."""
    changed = TRANSFORMS[name].on(BASE_MODELS[base_model])

    def gap(explainer):
        return Check("invariance", explainer, changed).run(Settings()).gap

    for lrp, unaffected in ((AttnLRP, set()), (CPLRP, OF_LOGITS)):
        assert gap(lrp()) < 1e-12
        if name.startswith("permutation") or name in unaffected:
            assert gap(lrp(1e-2)) < 1e-12
        else:
            assert gap(lrp(1e-2)) > 5e-4


# --- float64 throughout ----------------------------------------------------------------------------------------------


class Dtypes(TorchFunctionMode):
    """Records the dtypes of all results that depend on the inputs."""

    def __init__(self):
        super().__init__()
        self.seen = set()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.requires_grad:
            self.seen.add(result.dtype)
        return result


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("base_model", BASE_MODELS)
def test_a_base_model_computes_in_its_own_dtype(base_model, dtype):
    model = BASE_MODELS[base_model].model(0, dtype, CPU)
    with Dtypes() as dtypes:
        case = BASE_MODELS[base_model].case(0, dtype, CPU)
        replace(case, inputs=case.inputs.requires_grad_()).run(model)
    assert dtypes.seen == {dtype}


# --- registration ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("base_model", BASE_MODELS)
def test_a_base_model_is_one_of_its_architecture_and_named_after_it(base_model):
    architecture = architecture_of(BASE_MODELS[base_model].model(0, torch.float64, CPU))
    assert BASE_MODELS[base_model] in architecture.base_models
    assert base_model.startswith(architecture.name)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_small_model_has_the_two_ways_to_write_to_it(name):
    """Views of weights, and replaced modules: of each map in turn, by a copy, the function stays the same."""
    base_model = BASE_MODELS[name]
    model, case = base_model.model(0, torch.float64, CPU), base_model.case(0, torch.float64, CPU)
    with torch.no_grad():
        expected = case.run(model)
        for layer in layers(model):
            attention = (layer.query_key_value,) if layer.fused else (layer.query, layer.key, layer.value)
            for view in (*attention, layer.output, *layer.up, layer.down):
                layer.replace(view, as_module(view))
        torch.testing.assert_close(case.run(model), expected, rtol=1e-12, atol=1e-12)
        for layer in layers(model):
            for view in (layer.query, layer.key, layer.value, layer.output, *layer.up, layer.down):
                before = case.run(model)
                view.weight.mul_(1.1)
                assert differ([case.run(model)], [before])


def test_a_part_of_a_fused_map_has_no_module_of_its_own():
    layer = next(layers(BASE_MODELS["gpt2"].model(0, torch.float64, CPU)))
    with pytest.raises(ValueError, match="replace `query_key_value`"):
        layer.replace(layer.query, nn.Identity())


TOO_SLOW = {
    (transform, "bert_trained")
    for transform in (
        "batching.single",
        "execution.chunked_feed_forward",
        "execution.device_map",
        "parametrization.low_rank_adapter",
        "parametrization.weight_norm",
    )
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_transform_is_registered_on_the_base_models_that_meet_its_requirements(name):
    pairs = pair.registered_pairs()
    for base_model in TRANSFORMS[name].base_models:
        assert f"{name}_{base_model}" in pairs
        assert not TRANSFORMS[name].unmet(BASE_MODELS[base_model].model(0, torch.float64, CPU))
    for other in (m for m in BASE_MODELS.values() if m.name not in TRANSFORMS[name].base_models):
        unmet = TRANSFORMS[name].unmet(other.model(0, torch.float64, CPU))
        assert unmet or other.variant or (name, other.name) in TOO_SLOW


def test_an_unknown_base_model_is_refused():
    with pytest.raises(KeyError, match="brt"):
        function_preserving_transform("basis.typo", why="why", lrp="why", variants=("bert_relu", "brt"))(deepcopy)
    assert "basis.typo" not in registered_transforms()
    assert "basis.typo_bert" not in pair.registered_pairs()


def test_a_transform_without_a_base_model_is_refused():
    impossible = [every_layer("no heads", lambda layer: layer.heads == 0)]
    with pytest.raises(ValueError, match=r"basis\.typo: no base model meets the requirements"):
        function_preserving_transform("basis.typo", why="why", lrp="why", requires=impossible)(deepcopy)


# --- a checkpoint ----------------------------------------------------------------------------------------------------


@pytest.fixture
def registry(monkeypatch):
    """A registry of the test's own."""
    pair.registered_pairs()
    monkeypatch.setattr(pair, "_registry", dict(pair._registry))
    return pair._registry


def save_short(name, folder, limit):
    """A checkpoint with this limit of tokens; RoBERTa counts its positions from 2 on."""
    sizes = {"n_positions": limit} if name == "gpt2" else {"max_position_embeddings": limit + 2 * (name == "roberta")}
    small_models.ARCHITECTURES[name](**sizes).save_pretrained(folder)
    tokenizer(special=name not in DECODERS).save_pretrained(folder)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_checkpoint_gets_the_pairs_of_its_architecture(name, tmp_path, registry):
    pairs = register_checkpoint(str(save(name, tmp_path)))
    transforms = {p.name.removesuffix("_checkpoint") for p in pairs}
    assert transforms == {transform.name for transform in TRANSFORMS.values() if name in transform.base_models}
    assert all(p.name in registry for p in pairs)


@pytest.mark.parametrize("name", [*DECODERS, *IMAGE_CLASSIFIERS])
def test_pairs_of_a_checkpoint_hold(name, tmp_path, registry):
    pairs = {p.name: p for p in register_checkpoint(str(save(name, tmp_path)))}
    for changed in ("basis.query_key_checkpoint", "folding.norm_checkpoint"):
        assert Check("equivalence", None, pairs[changed]).run(Settings()).status == "holds"
        assert Check("invariance", AttnLRP(), pairs[changed]).run(Settings()).status == "holds"


def test_relu_neurons_of_a_checkpoint_are_rescaled(tmp_path, registry):
    bert(hidden_act="relu").save_pretrained(tmp_path)
    tokenizer(special=True).save_pretrained(tmp_path)
    assert "rescaling.relu_neurons_checkpoint" in [p.name for p in register_checkpoint(str(tmp_path))]


def test_the_error_for_an_unknown_architecture_lists_the_known_ones(tmp_path, registry):
    config = transformers.DistilBertConfig(vocab_size=16, dim=8, n_layers=1, n_heads=2, hidden_dim=8)
    transformers.DistilBertForSequenceClassification(config).save_pretrained(tmp_path)
    tokenizer(special=True).save_pretrained(tmp_path)
    with pytest.raises(
        ModelError, match=r"no transform is known for the architecture 'distilbert'; .*: bert, gpt2, llama"
    ):
        register_checkpoint(str(tmp_path))


def test_a_checkpoint_that_computes_in_float32_is_refused(tmp_path, registry):
    gpt2(reorder_and_upcast_attn=True).save_pretrained(tmp_path)
    tokenizer(special=False).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="cannot be run in float64, which pairs are proved in: "):
        register_checkpoint(str(tmp_path))


@pytest.mark.parametrize("name", ["bert", "roberta", "gpt2"])
def test_a_checkpoint_of_few_positions_has_room_for_padding(name, tmp_path, registry):
    """Of 9 positions padding takes 3: without them it would end in an IndexError, and the sentences fill the others."""
    save_short(name, tmp_path, 9)
    pairs = {p.name: p for p in register_checkpoint(str(tmp_path))}
    padded = [p for p in pairs.values() if "padded" in p.name]
    assert len(padded) == 1 + (name == "gpt2")
    for changed in padded:
        assert changed.case(0, torch.float64, CPU).shape[1] == 6
        assert Check("equivalence", None, changed).run(Settings()).status == "holds"
        assert Check("invariance", AttnLRP(), changed).run(Settings()).status == "holds"


def test_a_checkpoint_too_short_for_padding_says_so(tmp_path, registry):
    save_short("bert", tmp_path, 5)
    told = f"--checkpoint: {tmp_path}: takes 5 tokens at most, and its pairs need 6, 3 of them for padding: give a"
    with pytest.raises(OptionError, match=re.escape(told)):
        choose_checkpoint([str(tmp_path)])


def test_the_error_for_a_pickled_checkpoint_names_no_option_that_pytest_lacks(tmp_path, registry):
    weights = load_file(save("bert", tmp_path) / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    torch.save(weights, tmp_path / "pytorch_model.bin")
    with pytest.raises(OptionError, match="save them again by save_pretrained, or use `faithcheck align --allow-"):
        choose_checkpoint([str(tmp_path)])
    pickled = transformers.BertForSequenceClassification.from_pretrained(tmp_path, use_safetensors=False)
    pickled.save_pretrained(tmp_path)
    assert choose_checkpoint([str(tmp_path)])


@pytest.mark.parametrize(
    ("paths", "got"), [([""], "got none"), (["here", "there"], "got here and there")], ids=["empty", "two"]
)
def test_one_checkpoint_at_a_time(paths, got):
    with pytest.raises(OptionError, match=f"--checkpoint takes one path.*; {got}"):
        choose_checkpoint(paths)


def test_the_transforms_that_do_not_apply_to_a_checkpoint_are_listed_with_what_they_need(tmp_path, registry):
    report = describe_checkpoint(choose_checkpoint([str(save("vit", tmp_path))])).splitlines()
    applied = [name for name, transform in TRANSFORMS.items() if "vit" in transform.base_models]
    others = TRANSFORMS.keys() - set(applied)
    assert report[0] == f"checkpoint: {len(applied)} pairs; {len(others)} transforms do not apply to it:"
    assert {line.split()[0] for line in report[1:]} == others
    assert "  attention.separate needs one module for queries, keys and values" in report
    assert "  rescaling.gated_neurons needs a gated feed-forward block in every layer" in report
