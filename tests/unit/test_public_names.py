"""The packages import a public name when it is first used, and until then nothing heavy."""

import importlib
import subprocess
import sys

import pytest
import torch

from faithcheck.options.computing import DTYPES, FLOATING

PACKAGES = ("faithcheck", "faithcheck.axioms", "faithcheck.explainers", "faithcheck.models")


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_is_found_and_listed(package):
    module = importlib.import_module(package)
    assert set(module.__all__) <= set(dir(module))
    for name in module.__all__:
        assert getattr(module, name) is not None


@pytest.mark.parametrize("package", PACKAGES)
def test_an_unknown_name_is_an_error(package):
    module = importlib.import_module(package)
    with pytest.raises(AttributeError, match=f"No {package} attribute nope"):
        _ = module.nope


def test_the_packages_do_not_import_torch():
    script = f"import sys, {', '.join(PACKAGES)}; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout == "False\n"


def test_the_names_of_types_are_dtypes_of_torch():
    assert all(getattr(torch, name).is_floating_point for name in FLOATING)
    assert all(isinstance(getattr(torch, name), torch.dtype) for name in DTYPES)
