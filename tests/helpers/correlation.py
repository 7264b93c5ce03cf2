"""Correlation of maps, for the experiments."""


def pearson(a, b):
    """Pearson's r of each row, ``(batch,)``; sum-to-one multiplies it by the sign of each map's sum."""
    a, b = (x - x.mean(1, keepdim=True) for x in (a, b))
    return (a * b).sum(1) / (a.norm(dim=1) * b.norm(dim=1))
