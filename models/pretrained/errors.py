"""The error of models that cannot be loaded or used."""


class ModelError(ValueError):
    """A model cannot be loaded or used. The message names the model, the reason and what to do."""
