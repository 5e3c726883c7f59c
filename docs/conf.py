"""Sphinx settings."""

from typing import Any

from sb3_extra_buffers import __version__

project = "sb3-extra-buffers"
author = "sb3-extra-buffers contributors"
release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.intersphinx", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"sb3-extra-buffers {release}"
html_static_path = ["static"]
html_css_files = ["pages.css"]
autodoc_default_options = {"show-inheritance": True}
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_type_aliases = {"DTypeLike": "DTypeLike"}
add_module_names = False
python_maximum_signature_line_length = 80
default_role = "code"  # what stands between backticks in docstrings
myst_heading_anchors = 3
html_show_copyright = False
# Links to others' pages. Without a network the second inventory serves, an empty one: names are then plain text.
intersphinx_timeout = 5
intersphinx_mapping = {
    name: (address, (None, "none.inv"))
    for name, address in {
        "python": "https://docs.python.org/3",
        "numpy": "https://numpy.org/doc/stable",
        "torch": "https://docs.pytorch.org/docs/stable",
        "stable_baselines3": "https://stable-baselines3.readthedocs.io/en/master",
    }.items()
}


def setup(app: Any) -> None:
    """Let signatures name a type alias as the code does; Sphinx shows how it keeps it."""

    def shorten(
        app: Any, what: str, name: str, thing: Any, options: Any, arguments: str | None, result: str | None
    ) -> Any:
        plain = "TypeAliasForwardRef('DTypeLike')", "DTypeLike"
        return arguments and arguments.replace(*plain), result and result.replace(*plain)

    app.connect("autodoc-process-signature", shorten)
