"""Pearson's r of attribution maps, written out."""


def pearson(a, b):
    """Pearson's r of each row, ``(batch,)``; dividing maps by their sums multiplies it by the signs of the sums."""
    a, b = (x - x.mean(1, keepdim=True) for x in (a, b))
    return (a * b).sum(1) / (a.norm(dim=1) * b.norm(dim=1))
