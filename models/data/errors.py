"""The error of data that cannot be read."""


class DataError(ValueError):
    """A data folder or a file in it is missing or damaged. The message names the path and says what is expected."""
