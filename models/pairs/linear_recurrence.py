"""Linear recurrences: step by step, in parallel, as a convolution, and as attention.

*Constant coefficients* (Gu et al. 2022, arXiv 2111.00396, Eqs. 3–5), hₜ = A hₜ₋₁ + B xₜ, yₜ = C hₜ with a diagonal A.
The outputs are yₜ = Σ_s C Aᵗ⁻ˢ B x_s: a convolution with the kernel C Aᵏ B. All forms are linear in the inputs and have
constant weights, so that every LRP method passes the plain gradient on, at ε = 0.

*Retention* (Sun et al. 2023, arXiv 2307.08621, Eqs. 3–6), with queries q, keys k and values v of the inputs and a
constant decay λ: yₜ = Σ_{s ≤ t} λᵗ⁻ˢ (q_t·k_s) v_s, as attention (QKᵀ ⊙ D)V, or by the state Sₜ = λSₜ₋₁ + k_tᵀ v_t and
yₜ = q_t Sₜ. Let g_q, g_k and g_v be the gradients of the explained output through the three paths.

1. AttnLRP halves at each product of data. As attention: x ⊙ (¼g_q + ¼g_k + ½g_v); by the state:
   x ⊙ (½g_q + ¼g_k + ¼g_v). Gap: ¼ x ⊙ (g_v − g_q).
2. CP-LRP holds the first factor of a product constant: x ⊙ g_v in both.
3. Block-wise LRP shares by degree, and a decay is a constant factor: x ⊙ (g_q + g_k + g_v)/3 in both.

ε-LRP and DeepLIFT refuse products of data, and take constant coefficients.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from faithcheck.models.expectation import LINEAR_WITH_CONSTANT_WEIGHTS, expect_lrp
from faithcheck.models.networks.linear_attention import association_gap
from faithcheck.models.pair import copies, invariance_pair, random_points

STEPS, WIDTH, STATE = 6, 3, 4
CASE = random_points(6, STEPS, WIDTH, classes=2)


def in_sequence(decay: Tensor, inputs: Tensor) -> Tensor:
    """hₜ = a hₜ₋₁ + uₜ, step by step: ``(state,)`` and ``(batch, steps, state)`` to the latter."""
    states = [inputs[:, 0]]
    for t in range(1, STEPS):
        states.append(decay * states[-1] + inputs[:, t])
    return torch.stack(states, 1)


def in_parallel(decay: Tensor, inputs: Tensor) -> Tensor:
    """The same by a scan: each pass adds the state of twice as many steps before, as Blelloch's and Hillis's do."""
    states, distance = inputs, 1
    while distance < STEPS:
        before = functional.pad(states, (0, 0, distance, 0))[:, :STEPS]
        states, distance = states + decay**distance * before, 2 * distance
    return states


def as_convolution(decay: Tensor, inputs: Tensor) -> Tensor:
    """The same by a convolution of each state with the kernel (…, a², a, 1)."""
    kernel = torch.stack([decay**k for k in reversed(range(STEPS))], 1).unsqueeze(1)
    padded = functional.pad(inputs.transpose(1, 2), (STEPS - 1, 0))
    return functional.conv1d(padded, kernel, groups=STATE).transpose(1, 2)


class StateSpace(nn.Module):
    """A state space with a diagonal A, tanh of its outputs and a linear map: ``(batch, 6, 3)`` to ``(batch, 2)``."""

    def __init__(self, scan: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.scan = scan
        self.decay = nn.Parameter(torch.rand(STATE))
        self.input, self.output = nn.Linear(WIDTH, STATE, bias=False), nn.Linear(STATE, WIDTH, bias=False)
        self.head = nn.Linear(STEPS * WIDTH, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        states = self.scan(self.decay, self.input(inputs))
        return self.head(torch.tanh(self.output(states)).flatten(1))


S4 = "Gu et al. 2022, arXiv 2111.00396, Eqs. 3–5"


invariance_pair(
    "linear_recurrence.scan",
    copies(lambda: StateSpace(in_sequence), scan=in_parallel),
    CASE,
    LINEAR_WITH_CONSTANT_WEIGHTS,
    why="the composition of the maps h → ah + u is associative",
    cite=S4,
)
invariance_pair(
    "linear_recurrence.convolution",
    copies(lambda: StateSpace(in_sequence), scan=as_convolution),
    CASE,
    LINEAR_WITH_CONSTANT_WEIGHTS,
    why="hₜ = Σ_s aᵗ⁻ˢ u_s is a convolution with the powers of a",
    cite=S4,
)


DECAY = 0.75


def by_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """(QKᵀ ⊙ D)V with D_ts = λᵗ⁻ˢ for s ≤ t, ``(batch, steps, width)`` three times to the same."""
    t = torch.arange(STEPS, device=q.device)
    decays = torch.tensor(DECAY).to(q) ** (t.unsqueeze(1) - t).clamp_min(0)
    return (q @ k.transpose(1, 2) * decays.tril()) @ v


def by_state(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The same by the state S = λS + kᵀv, step by step."""
    state, outputs = k[:, :1].transpose(1, 2) @ v[:, :1], list[Tensor]()
    for t in range(STEPS):
        if t > 0:
            state = DECAY * state + k[:, t : t + 1].transpose(1, 2) @ v[:, t : t + 1]
        outputs.append(q[:, t : t + 1] @ state)
    return torch.cat(outputs, 1)


class Retention(nn.Module):
    """Retention without biases, and a linear map of all: ``(batch, 6, 3)`` to ``(batch, 2)``."""

    def __init__(self, retain: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.retain = retain
        self.query, self.key, self.value = (nn.Linear(WIDTH, STATE, bias=False) for _ in range(3))
        self.head = nn.Linear(STEPS * STATE, 2)

    def forward_paths(self, for_query: Tensor, for_key: Tensor, for_value: Tensor) -> Tensor:
        retained = self.retain(self.query(for_query), self.key(for_key), self.value(for_value))
        return self.head(retained.flatten(1))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.forward_paths(inputs, inputs, inputs)


invariance_pair(
    "linear_recurrence.retention",
    copies(lambda: Retention(by_attention), retain=by_state),
    CASE,
    expect_lrp(
        "values get ½ and queries ¼ as attention, queries ½ and values ¼ by the state",
        predict=association_gap,
        cite="Eqs. 3–4",
        of="attnlrp",
    ),
    expect_lrp("the first factor of each product is constant, so that values get everything", of="cplrp"),
    why="q_t Σ_s λᵗ⁻ˢ k_sᵀ v_s = Σ_s λᵗ⁻ˢ (q_t·k_s) v_s",
    cite="Sun et al. 2023, arXiv 2307.08621, Eqs. 3–6",
)
