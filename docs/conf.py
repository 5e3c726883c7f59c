"""Sphinx settings."""

from sb3_extra_buffers import __version__

project = "sb3-extra-buffers"
author = "sb3-extra-buffers contributors"
release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"sb3-extra-buffers {release}"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
myst_heading_anchors = 3
html_show_copyright = False
