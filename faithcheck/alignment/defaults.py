"""What ``faithcheck align`` measures unless the user says otherwise. Nothing here imports torch: help names these."""

TABLE_2 = ("loo", "ig_zero", "ig_pad", "ig_mask", "attention_rollout", "gradient_x_input", "attnlrp", "cplrp")
"""The explainers of Table 2 of arXiv 2510.18810."""
MAX_TOKENS = 4096
"""The most features in one forward pass, padding included."""
LONG, CHUNK = 128, 16
"""Examples of more features than ``LONG`` are perturbed in chunks of ``CHUNK``, as the paper perturbs IMDB."""
