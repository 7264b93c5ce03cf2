"""The seed of torch's random numbers."""

import torch


def seed_torch(seed: int) -> None:
    """Seed torch's generators, as `torch.manual_seed` does.

    Where there is no GPU, that function spends most of its time on writing down the call stack, for an error that
    only a GPU could raise.
    """
    if torch.cuda.is_available():
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)
