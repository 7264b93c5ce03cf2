"""The options of a run: from their text to checked values. All are checked before the run starts."""


class OptionError(ValueError):
    """An option cannot be used. The message names it, what is wrong and what to do; any function here may raise it."""
