"""How many rows the linear maps of a model are applied to."""

from torch.utils._python_dispatch import TorchDispatchMode


class CountedRows(TorchDispatchMode):
    """Counts the rows, which may be tokens, that linear maps of each shape are applied to."""

    def __init__(self):
        super().__init__()
        self.rows = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.__name__.startswith(("addmm", "mm.")):
            a, b = args[-2:]
            self.rows.setdefault(tuple(b.shape), []).append(a.shape[0])
        return func(*args, **(kwargs or {}))
