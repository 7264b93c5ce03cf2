"""The packages import a public name when it is first used, and until then nothing heavy."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from faithcheck.reports.commands.align_options import DTYPES

PACKAGES = ("axioms", "explainers", "models")


def home(package, name):
    """The module that a type checker takes a public name from."""
    tree = ast.parse(Path(importlib.import_module(f"faithcheck.{package}").__file__).read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    (module,) = (node.module for node in imports if name in [alias.name for alias in node.names])
    return module


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_is_found_listed_and_that_of_its_home(package):
    module = importlib.import_module(f"faithcheck.{package}")
    assert set(module.__all__) == set(module._HOMES)
    assert set(module.__all__) <= set(dir(module))
    for name in module.__all__:
        assert getattr(module, name) is getattr(importlib.import_module(home(package, name)), name)


@pytest.mark.parametrize("package", PACKAGES)
def test_an_unknown_name_is_an_error(package):
    module = importlib.import_module(f"faithcheck.{package}")
    with pytest.raises(AttributeError, match=rf"module 'faithcheck.{package}' has no attribute 'nope'"):
        _ = module.nope


def test_the_packages_do_not_import_torch():
    script = "import sys, faithcheck.axioms, faithcheck.explainers, faithcheck.models; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout == "False\n"


def test_the_dtypes_of_align_are_dtypes_of_torch():
    assert all(isinstance(getattr(torch, name), torch.dtype) for name in DTYPES)
