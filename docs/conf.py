"""How the site is built by `make docs`: warnings are errors, and nothing is fetched when it is read."""

import sys
from importlib.metadata import version as installed
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project, author, copyright = "lapwing", "the lapwing authors", "the lapwing authors"  # noqa: A001 (Sphinx's name)
version = release = installed("lapwing")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "mathml",
    "docstrings",
    "units",
    "pictures",
    "commands",
]
myst_enable_extensions = ["dollarmath", "fieldlist"]
myst_heading_anchors = 3
exclude_patterns = ["_build", "_ext"]
suppress_warnings = ["misc.highlighting_failure"]  # consoles that show output

default_role = "code"  # single backticks in docstrings
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
autodoc_class_signature = "separated"
add_module_names = False
python_use_unqualified_type_names = True
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_title = "lapwing"
html_show_sphinx = False
html_math_renderer = "mathml"
html_static_path = ["_static"]
html_css_files = ["site.css"]
