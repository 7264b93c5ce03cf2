"""An attention mask is 1 at features and 0 at padding; what others call one is refused with what is meant here."""

import pytest
import torch

from faithcheck.explainers import LeaveOneOut
from faithcheck.explainers.protocol import attribution_of
from faithcheck.models import Case

INPUTS = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
TARGET = torch.tensor([0, 1])


def case_with(mask):
    return Case(INPUTS, TARGET, torch.zeros_like(INPUTS), forward_arguments={"attention_mask": mask})


@pytest.mark.parametrize(
    ("mask", "reason"),
    [
        (torch.tensor([[0.0, 0, -1e9], [0, 0, 0]]), "additive mask"),
        (torch.tensor([[1.0, 2, 1], [1, 1, 1]]), "got 2"),
        (torch.ones(2, 1, 1, 3), "make larger masks of it"),
        (torch.ones(2, 3, 3), "make larger masks of it"),
        (torch.ones(2, 2), "make larger masks of it"),
        (torch.ones(1, 3), "a row per example"),
        (torch.tensor(1.0), "a row per example"),
        (None, "a row per example, got None"),
        (True, "a row per example, got True"),
    ],
)
def test_other_masks_are_refused(mask, reason):
    with pytest.raises(ValueError, match=reason):
        case_with(mask)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float32, torch.float64])
def test_ones_and_zeros_of_any_type_are_a_mask(dtype):
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]]).to(dtype)
    assert case_with(mask).unpadded.tolist() == [[True, True, False], [True] * 3]


def test_an_example_of_padding_alone_is_refused():
    class Model(torch.nn.Module):
        def forward(self, inputs, attention_mask):
            return (inputs * attention_mask.unsqueeze(-1)).sum(1)

    with pytest.raises(ValueError, match="a row of zeros"):
        attribution_of(LeaveOneOut(), Model(), case_with(torch.tensor([[1, 1, 1], [0, 0, 0]])))
