"""A linear model of two features and a case of three examples, small enough to be sent to a worker quickly."""

import torch
from torch import nn

from faithcheck.models.case import Case


def linear_model_and_case():
    """A ``Linear(2, 2)`` in float64 with fixed weights, and a case with a zero baseline."""
    torch.manual_seed(0)
    model = nn.Linear(2, 2).double().eval()
    return model, Case(torch.randn(3, 2).double(), torch.tensor([0, 1, 0]), torch.zeros(3, 2).double())
