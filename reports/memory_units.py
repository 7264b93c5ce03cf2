"""Numbers of bytes in words. Nothing here imports torch: the command line reads them."""

UNITS = {"GiB": 2**30, "MiB": 2**20, "KiB": 2**10}


def in_words(size: float) -> str:
    """A number of bytes in words, such as "1.5 GiB"."""
    unit = next((unit for unit, one in UNITS.items() if size >= one), "KiB")
    return f"{size / UNITS[unit]:.3g} {unit}"


def in_bytes(text: str) -> int:
    """The bytes that ``2GiB``, ``512MiB`` or ``2000000000`` says; raises `ValueError` unless finite and at least 1."""
    number = text.strip()
    unit = next((unit for unit in UNITS if number.endswith(unit)), "")
    size = float(number.removesuffix(unit)) * UNITS.get(unit, 1)
    if not 1 <= size < float("inf"):
        raise ValueError(f"out of range: {text}")
    return int(size)
