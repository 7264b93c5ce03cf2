"""Removals against shorter sentences, a plain loop over masks and each other; Leave-One-Out and its random draws."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from transformers import BertConfig, BertForSequenceClassification, GPT2Config, GPT2LMHeadModel

from faithcheck.explainers.loo import outputs as outputs_module
from faithcheck.explainers.loo.leave_one_out import LeaveOneOut
from faithcheck.explainers.loo.outputs import features_before_padding, outputs_without
from faithcheck.explainers.loo.removal import (
    REMOVALS,
    AttentionMask,
    Deletion,
    GaussianNoise,
    Replacement,
    Resampling,
    content,
    make_removal,
)
from faithcheck.explainers.protocol import Unsupported
from faithcheck.models import Case, select_target

LENGTHS, WIDTH = (7, 4, 6), 32
SEED = 20251018


def random_embeddings(*shape):
    """The same numbers each time, and the first rows of a longer tensor are those of a shorter one."""
    return torch.from_numpy(np.random.default_rng(SEED).standard_normal(shape))


class SmallEmbeddingModel(nn.Module):
    """Embeddings and a mask to the logits of a random, unmodified classifier or decoder."""

    def __init__(self, model, decoder=False):
        super().__init__()
        self.model, self.decoder = model.double().eval(), decoder

    def forward(self, inputs, attention_mask=None, last=None):
        logits = self.model(inputs_embeds=inputs, attention_mask=attention_mask).logits
        return logits[torch.arange(len(logits)), last] if self.decoder else logits


@pytest.fixture(scope="module")
def bert():
    config = BertConfig(
        hidden_size=WIDTH,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        vocab_size=50,
        initializer_range=0.2,  # the default 0.02 leaves an untrained model almost constant
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        return SmallEmbeddingModel(BertForSequenceClassification(config))


@pytest.fixture(scope="module")
def gpt2():
    config = GPT2Config(n_embd=WIDTH, n_layer=2, n_head=4, vocab_size=50, n_positions=16, initializer_range=0.2)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        return SmallEmbeddingModel(GPT2LMHeadModel(config), decoder=True)


def sentences(lengths=LENGTHS, padded=None, decoder=False):
    """A sentence per length, right-padded with the value 9, on which no result may depend."""
    padded = padded or max(lengths)
    mask = (torch.arange(padded) < torch.tensor(lengths).unsqueeze(1)).long()
    inputs = torch.stack(
        [torch.cat([random_embeddings(n, WIDTH) * n, torch.full((padded - n, WIDTH), 9.0)]) for n in lengths]
    )
    arguments = {"attention_mask": mask} | ({"last": torch.tensor(lengths) - 1} if decoder else {})
    mean = random_embeddings(WIDTH) / 2
    replacements = {"zero": torch.zeros(WIDTH), "mean": mean, "mask": mean + 1, "pad": mean - 1, "black": mean - 2}
    special = torch.zeros_like(mask, dtype=torch.bool)
    special[:, 0] = True
    replacements = {name: value.double() for name, value in replacements.items()}
    target = torch.arange(len(lengths)) % 2
    return Case(inputs, target, torch.full_like(inputs, 0.25), special, arguments, replacements)


def removal_of(name):
    if name == "resample":
        return Resampling(random_embeddings(20, WIDTH), draws=3, seed=SEED)
    return GaussianNoise(draws=3, seed=SEED) if name == "noise" else make_removal(name)


def test_every_removal_describes_itself():
    for name, kind in REMOVALS.items():
        options = {"pool": torch.ones(1)} if kind.draws_from_pool else {}
        removal = make_removal(name, **options)
        assert removal.name == name
        assert removal.description
        assert kind.needs
        assert (removal.draws > 1) == kind.is_random
    built_in = {
        **dict.fromkeys(["attention_mask", "delete"], "attention"),
        **dict.fromkeys(["baseline", "black", "mask", "mean", "pad", "zero"], "inputs"),
        **dict.fromkeys(["resample", "noise"], None),
    }
    assert {name: REMOVALS[name].gate for name in built_in} == built_in


def at(case, places):
    """Removed: feature ``places[i]`` of example i."""
    removed = torch.zeros(case.shape, dtype=torch.bool)
    removed[torch.arange(len(case.inputs)), torch.tensor(places)] = True
    return removed


def close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", REMOVALS)
def test_every_removal_changes_only_the_feature_and_not_the_case(name):
    case, removal = sentences(), removal_of(name)
    assert removal.name == name
    before = case.inputs.clone(), case.forward_arguments["attention_mask"].clone(), torch.get_rng_state()
    untouched = removal.remove(case, torch.zeros(case.shape, dtype=torch.bool))
    assert torch.equal(untouched.inputs, case.inputs)
    assert torch.equal(untouched.forward_arguments["attention_mask"], case.forward_arguments["attention_mask"])
    left = removal.remove(case, at(case, [2, 1, 3]))
    assert not (
        left.inputs.shape == case.inputs.shape and torch.equal(left.run(first_feature), case.run(first_feature))
    )
    assert torch.equal(case.inputs, before[0])
    assert torch.equal(case.forward_arguments["attention_mask"], before[1])
    assert torch.equal(torch.get_rng_state(), before[2])
    if name not in ("delete", "attention_mask"):
        changed = (left.inputs != case.inputs).any(2)
        assert torch.equal(changed, at(case, [2, 1, 3]))
        assert torch.equal(left.forward_arguments["attention_mask"], case.forward_arguments["attention_mask"])


def first_feature(inputs, attention_mask):
    """A linear model of everything that a removal may change."""
    weights = torch.arange(1, inputs.shape[1] + 1, dtype=inputs.dtype)
    return (inputs.sum(2) * attention_mask * weights).sum(1, keepdim=True)


@pytest.mark.parametrize("name", REMOVALS)
@pytest.mark.parametrize("max_tokens", [1, 30, 10_000])
def test_a_batch_equals_single_examples_and_padding_does_not_matter(bert, name, max_tokens):
    removal, case = removal_of(name), sentences(padded=9)
    together, output = LeaveOneOut(removal, max_tokens).attribute_with_output(bert, case)
    assert not together[~case.unpadded].any()
    for i, length in enumerate(LENGTHS):
        whole = case.select(torch.tensor([i]))
        one = replace(
            whole,
            inputs=whole.inputs[:, :length],
            baseline=whole.baseline[:, :length],
            special_tokens_mask=whole.special_tokens_mask[:, :length],
            forward_arguments={"attention_mask": whole.forward_arguments["attention_mask"][:, :length]},
        )
        alone, f_x = LeaveOneOut(removal).attribute_with_output(bert, one)
        close(together[i, :length], alone[0])
        close(output[i], f_x[0])
        close(f_x, select_target(bert(one.inputs), one.target))
    assert (together[case.unpadded].abs() > 1e-6).all(), "a removal must change the output"


def test_loo_by_attention_mask_is_a_plain_loop_over_masks(bert):
    case = sentences((6,))
    attribution = LeaveOneOut(AttentionMask()).attribute(bert, case)
    with torch.no_grad():
        whole = bert(case.inputs)
        for i in range(6):
            mask = torch.ones(1, 6, dtype=torch.int64)
            mask[0, i] = 0
            removed = bert(case.inputs, mask)
            close(attribution[:, i], select_target(whole - removed, case.target))


def test_a_removed_feature_takes_the_named_value():
    case = sentences()
    removed = at(case, [2, 1, 3])
    for name, value in {**case.replacements, "baseline": torch.full((WIDTH,), 0.25, dtype=torch.float64)}.items():
        left = make_removal(name).remove(case, removed).inputs
        assert torch.equal(left[removed], value.expand(3, WIDTH)), name
    pool = removal_of("resample").pool
    drawn = removal_of("resample").remove(case, removed).inputs[removed]
    assert (drawn.unsqueeze(1) == pool).all(2).any(1).all(), "each drawn feature must be one of the pool"


@pytest.mark.parametrize("removed", [0, 3, 5])
def test_deletion_is_the_shorter_sentence(bert, removed):
    case = sentences((6,))
    shorter = torch.cat([case.inputs[:, :removed], case.inputs[:, removed + 1 :]], 1)
    left = Deletion().remove(case, at(case, [removed]))
    assert torch.equal(left.inputs, shorter)
    assert left.special_tokens_mask.sum() == (removed > 0)
    attribution = LeaveOneOut(Deletion()).attribute(bert, case)
    close(attribution[:, removed], select_target(bert(case.inputs) - bert(shorter), case.target).detach())


@pytest.mark.parametrize("removed", [0, 3, 5])
def test_deletion_reads_a_decoder_at_the_last_remaining_token(gpt2, removed):
    case = sentences((6, 4), decoder=True)
    one = sentences((6,), decoder=True)
    shorter = torch.cat([one.inputs[:, :removed], one.inputs[:, removed + 1 :]], 1)
    expected = gpt2(one.inputs, last=torch.tensor([5])) - gpt2(shorter, last=torch.tensor([4]))
    close(LeaveOneOut(Deletion()).attribute(gpt2, case)[0, removed], select_target(expected, one.target)[0].detach())


def test_deletion_removes_the_columns_of_all_forward_arguments():
    case = sentences()
    types = torch.arange(7).expand(3, 7)
    wide = replace(
        case,
        forward_arguments={
            **case.forward_arguments,
            "token_type_ids": types,
            "language": torch.tensor([[1], [2], [3]]),
        },
    )
    left = Deletion().remove(wide, at(case, [2, 1, 3]) | at(case, [6, 3, 5]))
    assert [row[mask != 0].tolist() for row, mask in zip(*left_columns(left), strict=True)] == [
        [0, 1, 3, 4, 5],
        [0, 2],
        [0, 1, 2, 4],
    ]
    assert left.shape == (3, 5), "no longer than the longest remaining text"
    assert torch.equal(left.forward_arguments["language"], wide.forward_arguments["language"])


def left_columns(case):
    return case.forward_arguments["token_type_ids"], case.forward_arguments["attention_mask"]


def test_resampling_draws_from_other_examples_only():
    inputs = torch.arange(12, dtype=torch.float64).reshape(2, 6, 1)
    case = Case(inputs, torch.tensor([0, 0]), torch.zeros_like(inputs))
    owners = tuple(content(example) for example in inputs for _ in example)
    everything = torch.ones(2, 6, dtype=torch.bool)
    for draw in range(20):
        first, second = Resampling(inputs.flatten(0, 1), owners=owners).remove(case, everything, draw).inputs
        assert first.min() > 5
        assert second.max() < 6
    with pytest.raises(Unsupported, match="no other example"):
        Resampling(inputs[0], owners=owners[:6]).remove(case, everything)
    with pytest.raises(ValueError, match="owners"):
        Resampling(inputs[0], owners=owners[:5])


def test_deletion_without_a_mask_needs_equal_lengths():
    inputs = random_embeddings(2, 4)
    case = Case(inputs, torch.zeros(2, dtype=torch.int64), torch.zeros_like(inputs))
    left = Deletion().remove(case, at(case, [0, 3]))
    assert torch.equal(left.inputs, torch.stack([inputs[0, 1:], inputs[1, :3]]))
    with pytest.raises(Unsupported, match="attention_mask"):
        Deletion().remove(case, torch.tensor([[True, False, False, False], [False] * 4]))


@pytest.mark.parametrize("name", ["delete", "attention_mask"])
def test_removing_all_features_is_refused(name):
    case = sentences((3, 1))
    with pytest.raises(Unsupported, match="1 of 2 rows would have no feature left"):
        make_removal(name).remove(case, at(case, [1, 0]))


def test_removals_that_a_case_does_not_support_are_refused():
    inputs = random_embeddings(2, 4, 3)
    bare = Case(inputs, torch.zeros(2, dtype=torch.int64), torch.zeros_like(inputs))
    removed = at(bare, [0, 1])
    with pytest.raises(Unsupported, match=r"no forward_arguments\['attention_mask'\].*replacement"):
        AttentionMask().remove(bare, removed)
    with pytest.raises(Unsupported, match=r"no replacement 'mask' .* choose another"):
        Replacement("mask").remove(bare, removed)
    with pytest.raises(Unsupported, match=r"shaped \(7,\), the case's \(3,\)"):
        Resampling(torch.zeros(4, 7)).remove(bare, removed)
    assert not Replacement("zero").remove(bare, removed).inputs[removed].any()
    for wrong in (lambda: Resampling(torch.zeros(0, 3)), lambda: Resampling(inputs, 0), lambda: GaussianNoise(draws=0)):
        with pytest.raises(ValueError, match="at least one"):
            wrong()
    with pytest.raises(ValueError, match="max_tokens must be at least 1"):
        LeaveOneOut(max_tokens=0).attribute(first_feature, bare)


@pytest.mark.parametrize("name", ["resample", "noise"])
def test_draws_depend_only_on_example_seed_and_draw(name):
    case, removal = sentences(), removal_of(name)
    removed = torch.zeros(case.shape, dtype=torch.bool)
    removed[:, 1:3] = True
    drawn = removal.remove(case, removed, 1).inputs
    order = torch.tensor([2, 0, 0, 1])
    assert torch.equal(removal.remove(case.select(order), removed[order], 1).inputs, drawn[order])
    alone = removed & (torch.arange(7) == 2)
    assert torch.equal(removal.remove(case, alone, 1).inputs[:, 2], drawn[:, 2]), (
        "the other removed features must not matter"
    )
    assert torch.equal(removal.remove(case, removed, 1).inputs, drawn)
    single = replace(case, inputs=case.inputs.float(), baseline=case.baseline.float())
    assert removal.remove(single, removed, 1).inputs.dtype == torch.float32
    doubled = replace(single, inputs=single.inputs.double(), baseline=single.baseline.double())
    in_single, in_double = (removal.remove(one, removed, 1).inputs for one in (single, doubled))
    torch.testing.assert_close(in_single.double(), in_double, rtol=1e-5, atol=1e-5)  # float32's round-off
    other_seed = replace(removal, seed=SEED + 1)
    for other in (removal.remove(case, removed, 2), other_seed.remove(case, removed, 1)):
        assert (other.inputs != drawn)[removed].any(1).sum() >= 5, "another draw or seed must give other values"
    other_text = replace(case, inputs=case.inputs + at(case, [4, 3, 4]).unsqueeze(2))
    assert (removal.remove(other_text, removed, 1).inputs != drawn)[removed].any(1).sum() >= 5, (
        "another text must give other values"
    )


def test_resampling_draws_the_whole_pool_evenly():
    pool = torch.arange(4.0, dtype=torch.float64)
    inputs = random_embeddings(1, 50)
    case = Case(inputs, torch.zeros(1, dtype=torch.int64), torch.zeros_like(inputs))
    everything = torch.ones(case.shape, dtype=torch.bool)
    drawn = torch.cat([Resampling(pool, seed=SEED).remove(case, everything, k).inputs for k in range(100)])
    counts = torch.bincount(drawn.flatten().long(), minlength=4)
    # 5,000 draws: 1,250 of each, give or take 31 (one standard deviation).
    assert (counts - 1250).abs().max() < 4 * 31


@pytest.mark.parametrize("shape", [(1, 2000), (1, 200, 10)])
def test_noise_has_the_scale_that_is_set(shape):
    inputs = random_embeddings(*shape) * 3
    case = Case(inputs, torch.zeros(1, dtype=torch.int64), torch.zeros_like(inputs))
    noisy = GaussianNoise(scale=0.5, seed=SEED).remove(case, torch.ones(case.shape, dtype=torch.bool)).inputs
    size = inputs.abs() if inputs.dim() == 2 else inputs.square().mean(2, keepdim=True).sqrt()
    standard = (noisy - inputs) / (0.5 * size)
    # 2,000 standard normals: the mean is 0 ± 0.022, the variance 1 ± 0.032 (one standard deviation).
    assert abs(float(standard.mean())) < 4 * 0.022
    assert abs(float(standard.var()) - 1) < 4 * 0.032


def test_loo_is_the_mean_over_draws(bert):
    case, removal = sentences((6,)), removal_of("noise")
    each = [LeaveOneOut(OneDraw(removal, k)).attribute(bert, case) for k in range(removal.draws)]
    close(LeaveOneOut(removal).attribute(bert, case), torch.stack(each).mean(0))
    assert not torch.allclose(each[0], each[1])


class OneDraw:
    """The k-th draw of a random removal, as its only draw."""

    name, draws = "one_draw", 1

    def __init__(self, removal, k):
        self.removal, self.k = removal, k

    def remove(self, case, removed, draw=0):
        return self.removal.remove(case, removed, self.k)


@pytest.mark.parametrize(
    ("max_tokens", "most_padding", "expected"),
    [
        (20, 100, [14] * 4 + [18] * 3 + [12]),  # 8 rows of 7 features, 7 of 6 and 5 of 4: 7 · 2, 6 · 3, 4 · 3
        (1, 100, [7] * 8 + [6] * 7 + [4] * 5),
        (100, 100, [14 * 7, 6 * 6]),  # 20 rows of 7 features would be 140
        (10_000, 100, [20 * 7]),
        (10_000, 9, [15 * 7, 5 * 4]),
        (10_000, 0, [8 * 7, 7 * 6, 5 * 4]),
    ],
)
def test_passes_are_bounded_in_features_and_in_padding(bert, max_tokens, most_padding, expected, monkeypatch):
    """A pass has at most max_tokens features, unless it has a single row, and at most so many of padding."""
    monkeypatch.setattr(outputs_module, "MOST_PADDING", most_padding * WIDTH)
    seen = []

    class Recorded(nn.Module):
        def forward(self, inputs, attention_mask):
            assert inputs.shape[:2] == attention_mask.shape
            seen.append(attention_mask.numel())
            return bert(inputs, attention_mask)

    case = sentences(padded=9)
    LeaveOneOut(AttentionMask(), max_tokens).attribute(Recorded(), case)
    assert sorted(seen, reverse=True) == sorted(expected, reverse=True)


def test_only_padding_at_the_end_is_left_out():
    case = sentences(padded=9)
    assert features_before_padding(case).tolist() == list(LENGTHS)
    mask = case.forward_arguments["attention_mask"]
    reverse = replace(case, forward_arguments={"attention_mask": mask.flip(1)})
    assert features_before_padding(reverse).tolist() == [9] * 3
    for shape in ((3, 1, 9, 9), (3, 9, 9), (3, 10)):
        other = {"attention_mask": mask, "other": torch.zeros(shape)}
        assert features_before_padding(replace(case, forward_arguments=other)).tolist() == [9] * 3, "cannot be cut"
    per_feature = {"attention_mask": mask, "last": mask[:, 0], "of_features": torch.zeros(3, 9, 2)}
    assert features_before_padding(replace(case, forward_arguments=per_feature)).tolist() == list(LENGTHS)
    nothing = replace(case, forward_arguments={"attention_mask": mask * 0})
    assert features_before_padding(nothing).tolist() == [9] * 3


def test_outputs_without_several_features(bert):
    """Several features at once, in rows of any order, against the attention mask by hand."""
    case = sentences()
    removed = at(case, [1, 2, 4]) | at(case, [3, 1, 2])
    example = torch.tensor([2, 0])
    outputs = outputs_without(bert, case, example, removed[example], AttentionMask(), 7)
    mask = case.forward_arguments["attention_mask"] * ~removed
    close(outputs, select_target(bert(case.inputs, mask), case.target)[example].detach())
