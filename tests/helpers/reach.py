"""How far imports reach in this repository: ``python -m faithcheck.tests.helpers.reach [MODULE …]``.

The imports of each file are read from its source, also those within functions and by ``import_module`` of a literal
name; those under ``TYPE_CHECKING`` do not run and do not count. Prints how many files each module reaches, the circles,
the imports from a folder that should not be known, and the sizes of the repository.
"""

import ast
import sys
from functools import cache
from pathlib import Path

import faithcheck.tests

ROOT = Path(faithcheck.tests.__path__[0]).resolve().parent
FOLDERS = ("models", "explainers", "axioms", "reports", "faithcheck")
"""The folders of the product, each of which uses only those before it."""


@cache
def modules():
    """``{module: file}`` of the product."""
    found = {}
    for folder in FOLDERS:
        for file in sorted((ROOT / folder).rglob("*.py")):
            parts = file.relative_to(ROOT).with_suffix("").parts
            name = ".".join(parts if folder == "faithcheck" else ("faithcheck", *parts))
            found[name.removesuffix(".__init__")] = file
    return found


@cache
def imports(name):
    """The modules of the product that a module imports."""
    tree = ast.parse(modules()[name].read_text(encoding="utf-8"))
    is_package = modules()[name].name == "__init__.py"
    return frozenset(imported_by(tree, name if is_package else name.rpartition(".")[0])) - {name}


def imported_by(tree, package):
    """The modules of the product that the statements of a module in this package import."""
    for node in statements(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules())
        elif isinstance(node, ast.ImportFrom):
            above = package.rsplit(".", node.level - 1)[0] if node.level else ""
            module = ".".join(filter(None, (above, node.module)))
            for alias in node.names:
                full = f"{module}.{alias.name}"
                yield from (one for one in (full if full in modules() else module,) if one in modules())
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) == "import_module":
            literal = node.args and isinstance(node.args[0], ast.Constant)
            yield from (node.args[0].value,) if literal and node.args[0].value in modules() else ()


def statements(node):
    """The nodes of a tree, without what stands under ``if TYPE_CHECKING``."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        yield child
        yield from statements(child)


def reach(name):
    """The modules that a module imports, and those that these import."""
    seen, pending = set(), [name]
    while pending:
        new = imports(pending.pop()) - seen
        seen |= new
        pending += new
    return seen - {name}


def circles():
    """The groups of modules of which each reaches every other."""
    found = []
    for name in modules():
        circle = sorted({name, *(other for other in reach(name) if name in reach(other))})
        if len(circle) > 1 and circle not in found:
            found.append(circle)
    return found


def imports_upwards():
    """The imports of a module of a folder that stands above: ``(module, imported)``."""

    def floor(name):
        folder = name.split(".")[1] if "." in name else ""
        return FOLDERS.index(folder) if folder in FOLDERS else len(FOLDERS) - 1

    return [(name, one) for name in modules() for one in sorted(imports(name)) if floor(one) > floor(name)]


def reports_with_torch():
    """The modules of ``reports/`` that import torch, or reach a module that does."""
    return [name for name in modules() if name.startswith("faithcheck.reports.") and reaches(name, "torch")]


def lines(file):
    """The number of lines of a file."""
    return len(file.read_text(encoding="utf-8").splitlines())


def sizes():
    """``(lines of the product, lines of the largest file, files of at most 60 lines)``."""
    counts = [lines(file) for file in modules().values()]
    return sum(counts), max(counts), sum(count <= 60 for count in counts)


def reaches(name, library):
    """Whether a module, or one that it reaches, imports a library."""
    return any(library in external(one) for one in {name, *reach(name)})


@cache
def external(name):
    """The top-level names that a module imports."""
    nodes = list(statements(ast.parse(modules()[name].read_text(encoding="utf-8"))))
    plain = {alias.name.partition(".")[0] for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return plain | {node.module.partition(".")[0] for node in nodes if isinstance(node, ast.ImportFrom) and node.module}


def main(names):
    """Print the reach of these modules, the circles and the sizes."""
    for name in names:
        print(f"{name} reaches {len(reach(name))} files: {', '.join(sorted(reach(name)))}")
    for circle in circles():
        print(f"circle: {', '.join(circle)}")
    for name, imported in imports_upwards():
        print(f"upwards: {name} imports {imported}")
    print(f"modules of reports/ that reach torch: {', '.join(reports_with_torch()) or 'none'}")
    product, largest, short = sizes()
    print(f"{product:,} lines; the largest file has {largest}; {short} files have at most 60")


if __name__ == "__main__":
    main(sys.argv[1:] or ["faithcheck.axioms.invariance"])
