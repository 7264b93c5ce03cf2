"""The site of these documents: ``make docs`` builds it into build/docs. Nothing in it needs the network."""

import re
from pathlib import Path

import faithcheck
from faithcheck.reports.documents import environment

project = "faithcheck"
release = environment.version()
copyright = "the authors of faithcheck, MIT licence"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "index"
exclude_patterns = ["conf.py"]
html_theme = "furo"
html_title = f"faithcheck {release}"
html_show_sphinx = False
html_copy_source = False

myst_heading_anchors = 3
myst_enable_extensions = ["strikethrough"]
suppress_warnings = ["myst.strikethrough"]

default_role = "literal"  # `name` in a docstring is a name of the code
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
autodoc_member_order = "bysource"
autodoc_class_signature = "separated"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True

REPOSITORY = Path(faithcheck.reports.__path__[0]).parent


def setup(app):
    """Register what adapts the documents, whose links are those of the repository, to the site."""
    app.connect("source-read", adapt_links)


def adapt_links(app, name, source):
    """Lead the links to files outside this folder to the pages of the site, or say where the file lies."""
    up = "../" * name.count("/")
    text = source[0].replace(f"]({up}../CONTRIBUTING.md", f"]({up}contributing/index.md")
    outside = rf"\[([^\]]+)\]\({re.escape(up)}\.\./([^)#\s]+)(?:#[^)\s]*)?\)"
    source[0] = re.sub(outside, r"\1 (`\2`)", text)
