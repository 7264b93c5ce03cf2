"""The options of a run, by what they choose. All are checked before the run starts.

What belongs here: from the text of an option to its value, with an error for a bad one. Not here: the commands that
take the options (`faithcheck.cli`) and the pytest plugin (`faithcheck.pytest_plugin`).

* `explainers`, `pairs`, `expectations`: what is checked, on what, and what is expected.
* `computing`: in which type, on which device or cluster, and for how long.
* `output_path`: the files that are written.
* `names`, `user_modules`: what is wrong in a name or a module is refused before torch is imported.
"""


class OptionError(ValueError):
    """An option cannot be used; every function of this package may raise it.

    The message names the option, what is wrong with it and what to do.
    """
