"""Random cases that several families of pairs share; every baseline is 0."""

from collections.abc import Sequence

import torch

from faithcheck.models.case import Case
from faithcheck.models.pair import MakeCase

TOKENS, WIDTH = 7, 32  # of `sentences`


def generator(seed: int) -> torch.Generator:
    """A new random generator, independent of torch's global one."""
    return torch.Generator().manual_seed(seed)


def random_points_and_targets(rows: int, features: int, classes: int) -> MakeCase:
    """A pair's ``case``: standard normal inputs ``(rows, features)``, random targets below ``classes``."""

    def case(seed: int, dtype: torch.dtype, device: torch.device) -> Case:
        inputs = torch.randn(rows, features, dtype=torch.float64, generator=generator(seed)).to(device, dtype)
        target = torch.randint(classes, (rows,), generator=generator(seed)).to(device)
        return Case(inputs, target, torch.zeros_like(inputs))

    return case


points = random_points_and_targets(6, 8, classes=3)
"""Six random points of eight features, three outputs."""


def sentences(seed: int, dtype: torch.dtype, device: torch.device) -> Case:
    """Four random sentences of seven token embeddings, the first and the last token special."""
    inputs = torch.randn(4, TOKENS, WIDTH, dtype=torch.float64, generator=generator(seed)).to(device, dtype)
    special = torch.zeros(4, TOKENS, dtype=torch.bool, device=device)
    special[:, [0, -1]] = True
    target = torch.randint(2, (4,), generator=generator(seed)).to(device)
    return Case(inputs, target, torch.zeros_like(inputs), special)


def padded_sentences(seed: int, dtype: torch.dtype, device: torch.device) -> Case:
    """The same with lengths 7, 6, 4 and 2; values at padding are as large as at any token."""
    case = sentences(seed, dtype, device)
    lengths = torch.tensor([7, 6, 4, 2], device=device).unsqueeze(1)
    mask = (torch.arange(case.shape[1], device=device) < lengths).long()
    return Case(case.inputs, case.target, case.baseline, case.special_tokens_mask, {"attention_mask": mask})


def factors(n: int) -> MakeCase:
    """A pair's ``case`` of n factors: the point (2, 3, 4, …) and seven random ones."""

    def case(seed: int, dtype: torch.dtype, device: torch.device) -> Case:
        random = torch.randn(7, n, dtype=torch.float64, generator=generator(seed))
        inputs = torch.cat([torch.arange(2.0, n + 2).double().unsqueeze(0), random]).to(device, dtype)
        return Case(inputs, torch.zeros(8, dtype=torch.int64, device=device), torch.zeros_like(inputs))

    return case


def examples(rows: Sequence[Sequence[float]], baseline: Sequence[float] | None = None) -> MakeCase:
    """A pair's ``case`` of these inputs, the same for every seed; the baseline is that of each row, by default 0."""

    def case(seed: int, dtype: torch.dtype, device: torch.device) -> Case:
        inputs = torch.tensor(rows, dtype=dtype, device=device)
        start = torch.zeros_like(inputs) if baseline is None else inputs.new_tensor(baseline).expand_as(inputs)
        return Case(inputs, torch.zeros(len(rows), dtype=torch.int64, device=device), start.clone())

    return case
