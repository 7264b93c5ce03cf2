"""False pairs: two models that look like a pair and are not, each with what the refusal must say.

Most are f(x) = tanh(xW₁)W₂ and a g that computes something else under one circumstance. A false pair that passed as a
pair would make explainers red that are right.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from faithcheck.models.case import Case
from faithcheck.models.pair import Pair, random_points

FEATURES = 4
points = random_points(6, FEATURES, classes=2)


class Network(nn.Module):
    """tanh(xW₁)W₂, ``(batch, 4)`` to ``(batch, 2)``; it counts its forward passes, and those with gradients."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.first = nn.Parameter(torch.randn(FEATURES, 5, generator=generator, dtype=torch.float64))
        self.second = nn.Parameter(torch.randn(5, 2, generator=generator, dtype=torch.float64))
        self.calls, self.calls_with_gradients, self.previous = 0, 0, None

    def forward(self, x, attention_mask=None):
        self.calls += 1
        self.calls_with_gradients += x.requires_grad and torch.is_grad_enabled()
        hidden = torch.tanh((x if attention_mask is None else x * attention_mask) @ self.first)
        return hidden @ self.second


class Changed(Network):
    """The network with its output changed: ``change(model, x, y) -> y``."""

    def __init__(self, change):
        super().__init__()
        self.change = change

    def forward(self, x, attention_mask=None):
        y = self.change(self, x, super().forward(x, attention_mask))
        self.previous = x.detach().clone()
        return y


class ChangingGradient(torch.autograd.Function):
    """The identity. From the model's 13th backward pass on its gradient is 10 % too large."""

    @staticmethod
    def forward(context, y, model):
        context.model = model
        return y.clone()

    @staticmethod
    def backward(context, gradient):
        context.model.backward_passes = getattr(context.model, "backward_passes", 0) + 1
        return gradient * (1.1 if context.model.backward_passes > 12 else 1.0), None


class MaskHole(Network):
    """Another function where the mask hides a feature before one that it shows."""

    def forward(self, x, attention_mask):
        hole = (attention_mask[:, :-1] < attention_mask[:, 1:]).any(1, keepdim=True)
        return super().forward(x, attention_mask) * torch.where(hole, 1.1, 1.0)


class OtherWhenCopied(Network):
    """Its deep copy has other weights."""

    def __deepcopy__(self, memo):
        copy = Network()
        copy.first = nn.Parameter(self.first.detach() * 1.1)
        return copy


class RunningMean(Network):
    """It keeps the mean of its inputs in a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(FEATURES, dtype=torch.float64))

    def forward(self, x, attention_mask=None):
        self.mean.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
        return super().forward(x)


class Remembering(Network):
    """It keeps its inputs in a buffer that it makes in the forward pass."""

    def forward(self, x, attention_mask=None):
        self.register_buffer("seen", x.detach())
        return super().forward(x)


class Training(Network):
    """It stays in train mode."""

    def eval(self):
        return self.train()


@dataclass(frozen=True)
class FalsePair:
    """Two models that are not one function."""

    g: Callable[[], nn.Module]
    message: str
    f: Callable[[], nn.Module] = Network
    case: Callable[..., Case] = field(default=points)

    def pair(self, name: str) -> Pair:
        """The two models as a pair of this name."""
        return Pair(f"false_pair.{name}", lambda *_: (self.f().eval(), self.g().eval()), self.case, "it is not")


def masked_points(*how: Any) -> Case:
    """The points, of which the last feature of every other example is padding."""
    case = points(*how)
    mask = torch.ones(case.shape, dtype=torch.int64)
    mask[::2, -1] = 0
    return Case(case.inputs, case.target, case.baseline, forward_arguments={"attention_mask": mask})


def when(condition: Callable[[Network, torch.Tensor], Any]) -> Callable[[], nn.Module]:
    """A g whose outputs are 10 % larger where the condition on model and inputs holds."""
    return lambda: Changed(lambda model, x, y: y * torch.where(torch.as_tensor(condition(model, x)), 1.1, 1.0).to(y))


def changed(change: Callable[..., torch.Tensor]) -> Callable[[], nn.Module]:
    """A model with its output changed."""
    return lambda: Changed(change)


def rows(values: torch.Tensor) -> torch.Tensor:
    """Whether a row's values are all true: ``(batch, 1)``."""
    return values.all(1, keepdim=True)


def example(index: int, x: torch.Tensor) -> torch.Tensor:
    """An example of the case, ``(4,)``."""
    return points(0, x.dtype, x.device).inputs[index]


def near(distance: torch.Tensor) -> torch.Tensor:
    """Whether values are small and not 0."""
    return (distance.abs() > 1e-4) & (distance.abs() < 0.3)


def no_value(x: torch.Tensor) -> torch.Tensor:
    """A sum over the features whose value is 0 and whose gradient is 1."""
    return (x - x.detach()).sum(1)


def outputs(*columns: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[], nn.Module]:
    """A model of so many outputs."""
    return changed(lambda model, x, y: torch.stack([column(x) for column in columns], 1))


LARGE_AND_SMALL = (lambda x: x.sin().sum(1), lambda x: 1e-11 * x.cos().sum(1))
FEATURE_OF_SMALL_GRADIENT = (lambda x: x[:, 0].sin() + 1e-11 * x[:, 1].sin(), lambda x: x.cos().sum(1))
LARGE_BATCH, ALONE = "in a large batch than in a small one", "for an example alone than in its batch"

FALSE_PAIRS = {
    "without gradients": FalsePair(when(lambda *_: not torch.is_grad_enabled()), r"g .* under torch\.no_grad\(\)"),
    "inputs without gradient": FalsePair(
        when(lambda model, x: torch.is_grad_enabled() and not x.requires_grad), "g .* for inputs that need no gradient"
    ),
    "function mode": FalsePair(
        when(lambda *_: torch.overrides._len_torch_function_stack() > 0), "g .* under a torch function mode"
    ),
    "batch of one": FalsePair(when(lambda model, x: len(x) == 1), f"g .* {ALONE}"),
    "batch above 40": FalsePair(when(lambda model, x: len(x) > 40), f"g .* {LARGE_BATCH}"),
    "odd batch": FalsePair(when(lambda model, x: len(x) % 2 == 1), f"g .* ({ALONE}|{LARGE_BATCH})"),
    "float32": FalsePair(when(lambda model, x: x.dtype == torch.float32), "g .* in float32"),
    "only float32 is right": FalsePair(when(lambda model, x: x.dtype == torch.float64), "g .* in float32"),
    "deep copy": FalsePair(OtherWhenCopied, r"g .* as a copy by copy\.deepcopy"),
    "shared memory": FalsePair(when(lambda model, x: x.stride(0) == 0), "g .* in two rows of the same memory"),
    "from the 100th call on": FalsePair(when(lambda model, x: model.calls >= 100), r"g .* in call \d+, with gradients"),
    "every 60th call": FalsePair(when(lambda model, x: model.calls % 60 == 59), r"g .* in call \d+( of 150|, with)"),
    "at random, one call in 30": FalsePair(
        when(lambda *_: torch.rand(()) < 1 / 30), r"g (.* in call|gives different outputs|computes another)"
    ),
    "one without gradients": FalsePair(
        when(lambda model, x: not torch.is_grad_enabled() and len(x) == 1), r"g .* under torch\.no_grad\(\), alone"
    ),
    "many without gradients": FalsePair(
        when(lambda model, x: not torch.is_grad_enabled() and len(x) > 40),
        r"g .* in a large batch under torch\.no_grad",
    ),
    "float32 without gradients": FalsePair(
        when(lambda model, x: not torch.is_grad_enabled() and x.dtype == torch.float32),
        r"g .* in float32, under torch\.no_grad\(\)",
    ),
    "one in float32": FalsePair(
        when(lambda model, x: len(x) == 1 and x.dtype == torch.float32), "g .* in float32, alone in its batch"
    ),
    "computed inputs": FalsePair(
        when(lambda model, x: x.requires_grad and not x.is_leaf), "g .* for inputs that are computed"
    ),
    "from the 20th call with gradients on": FalsePair(
        when(lambda model, x: model.calls_with_gradients >= 20), r"g .* in call \d+, with gradients"
    ),
    "another gradient from the 13th on": FalsePair(
        changed(lambda model, x, y: ChangingGradient.apply(y, model)), r"g .* in call \d+, with gradients: the gradient"
    ),
    "after other inputs": FalsePair(
        when(lambda model, x: model.previous is not None and len(model.previous) != len(x)), "g .*another function"
    ),
    "the previous inputs' sign": FalsePair(
        when(lambda model, x: model.previous is not None and model.previous[-1, 0] > 0), "g .*another function"
    ),
    "a buffer": FalsePair(RunningMean, "the forward pass of g changes mean"),
    "a new buffer": FalsePair(Remembering, "the forward pass of g changes seen"),
    "train mode": FalsePair(Training, "g is in train mode"),
    "both mix their examples": FalsePair(
        changed(lambda model, x, y: y - y.mean(0)), f"f .* {ALONE}", changed(lambda model, x, y: y - y.mean(0))
    ),
    "both read the row before": FalsePair(
        changed(lambda model, x, y: torch.cat([y[:1], y[1:] + y[:-1]])),
        f"f .* ({ALONE}|{LARGE_BATCH})",
        changed(lambda model, x, y: torch.cat([y[:1], y[1:] + y[:-1]])),
    ),
    "both read the row after": FalsePair(
        changed(lambda model, x, y: torch.cat([y[:-1] + y[1:], y[-1:]])),
        f"f .* ({ALONE}|{LARGE_BATCH})",
        changed(lambda model, x, y: torch.cat([y[:-1] + y[1:], y[-1:]])),
    ),
    "position in the batch": FalsePair(
        changed(lambda model, x, y: y * (1 + torch.arange(len(y)).unsqueeze(1) / 10)), "g .*another function"
    ),
    "the largest of the batch": FalsePair(changed(lambda model, x, y: y + x.max()), "g .*another function"),
    "gradients that cancel": FalsePair(
        changed(lambda model, x, y: y + torch.stack([2 * no_value(x), -no_value(x)], 1)), "the gradient of output"
    ),
    "the gradient of one output": FalsePair(
        changed(lambda model, x, y: torch.stack([y[:, 0], y[:, 1] + no_value(x)], 1)), "the gradient of output 1"
    ),
    "the gradient of an example alone": FalsePair(
        changed(lambda model, x, y: y + no_value(x).unsqueeze(1) if len(x) == 1 else y), f"{ALONE}: the gradient"
    ),
    "gradient of half": FalsePair(changed(lambda model, x, y: (y + y.detach()) / 2), "the gradient of output"),
    "a small output": FalsePair(
        outputs(LARGE_AND_SMALL[0], lambda x: 1.1 * LARGE_AND_SMALL[1](x)), "output 1", outputs(*LARGE_AND_SMALL)
    ),
    "a feature of small gradient": FalsePair(
        outputs(
            lambda x: x[:, 0].sin() + 1e-11 * (x[:, 1].sin() + 0.1 * no_value(x[:, 1:2])), FEATURE_OF_SMALL_GRADIENT[1]
        ),
        "the gradient of output 0 at feature 1",
        outputs(*FEATURE_OF_SMALL_GRADIENT),
    ),
    "at the baseline": FalsePair(changed(lambda model, x, y: y + rows(x == 0)), "output"),
    "one feature at its baseline": FalsePair(when(lambda model, x: (x == 0).sum(1, keepdim=True) == 1), "output"),
    "between baseline and input": FalsePair(when(lambda model, x: rows(x.abs() < 0.3)), "output"),
    "next to an example": FalsePair(when(lambda model, x: rows(near(x - example(0, x)))), "output"),
    "far from the examples": FalsePair(when(lambda model, x: x.abs().amax(1, keepdim=True) > 20), "output"),
    "not finite far away": FalsePair(
        changed(lambda model, x, y: y / ~(x.abs().amax(1, keepdim=True) > 20)), "NaN or infinite"
    ),
    "two equal features": FalsePair(when(lambda model, x: x[:, :1] == x[:, 1:2]), "output"),
    "one example of the case": FalsePair(when(lambda model, x: rows(x == example(3, x))), "output"),
    "a hole in the mask": FalsePair(MaskHole, "output", case=masked_points),
    "a part in a million": FalsePair(changed(lambda model, x, y: y * (1 + 1e-6)), "output"),
    "rounded to float32": FalsePair(changed(lambda model, x, y: y.float().to(y)), "output"),
}
