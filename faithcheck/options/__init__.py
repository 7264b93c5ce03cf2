"""The options of a run, one a file, as pytest and the command line take them. All are checked before the run starts.

What belongs here: from the text of an option to its value, with an error for a bad one. Not here:
the commands that take the options (`faithcheck.cli`) and the pytest plugin (`faithcheck.plugin`).
"""


class OptionError(ValueError):
    """An option cannot be used. The message names the option, what is wrong with it and what to do."""
