"""The options of ``faithcheck align`` that cannot be used, refused before torch is imported, which takes seconds."""

import importlib.util
from typing import Any

from faithcheck.alignment.defaults import TABLE_2
from faithcheck.options import OptionError, names
from faithcheck.options.computing import refuse_unknown_device
from faithcheck.options.output_path import check_folder
from faithcheck.options.user_modules import import_from_current_folder


def refuse_wrong_options(options: Any) -> None:
    """Refuse options that do not fit together, and names and folders that cannot be used."""
    if options.contrast is not None and options.target is None:
        raise OptionError("--contrast: add --target: an example whose predicted output it is has nothing to explain")
    if options.next_token and options.target is not None:
        raise OptionError("--next-token: leave it out with --target, which says what is explained")
    for name in ("json", "md", "html", "parquet") if options.plan else ():
        if getattr(options, name) is not None:
            raise OptionError(f"--{name}: --plan prints an estimate and writes no file: leave one of the two out")
    _refuse_wrong_names(options)
    for name in ("cache", "parquet"):
        if (folder := getattr(options, name)) is not None:
            check_folder(folder, f"--{name}")
    if options.parquet is not None and importlib.util.find_spec("pyarrow") is None:
        raise OptionError('--parquet needs pyarrow: pip install "faithcheck[datasets]"')


def _refuse_wrong_names(options: Any) -> None:
    from faithcheck.models.data import texts  # not at the top: help needs neither
    from faithcheck.models.pretrained.folder import refuse_wrong_folder

    import_from_current_folder()
    names.refuse_unknown_explainers(name for name in options.explainer if name not in TABLE_2)
    refuse_unknown_device(options.device)
    if options.data is not None:
        texts.refuse_wrong_source(options.data, options.limit, of_texts=options.model is None)
    if options.model is not None:
        refuse_wrong_folder(options.model)
