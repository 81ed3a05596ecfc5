"""A hook of mkdocs: links to files outside of docs/ lead into the repository, if setup.py names its address."""

import ast
import posixpath
import re
from pathlib import Path

SETUP = Path(__file__).parents[1] / "setup.py"
(ADDRESS,) = (
    ast.literal_eval(node.value)
    for node in ast.parse(SETUP.read_text(encoding="utf-8")).body
    if isinstance(node, ast.Assign) and node.targets[0].id == "ADDRESS"
)
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((\.\./[^)\s]+)\)")


def on_config(config):
    config.repo_url = ADDRESS or None
    return config


def on_page_markdown(markdown, page, **kwargs):
    def in_the_repository(link):
        mark, text, target = link.groups()
        path = posixpath.normpath(posixpath.join(posixpath.dirname(page.file.src_uri), target))
        if not path.startswith("../"):
            return link[0]
        path = path.removeprefix("../")
        if not ADDRESS:
            return text if mark else f"{text} (`{path.partition('#')[0]}` in the repository)"
        return f"{mark}[{text}]({ADDRESS}/{'raw' if mark else 'blob'}/main/{path})"

    return LINK.sub(in_the_repository, markdown)


def on_page_content(html, **kwargs):
    """Types of arguments in the docstrings are written in transformers' way, with Markdown, and shown as they are."""
    return re.sub(r"<code>`[^<]*</code>", lambda code: re.sub(r"[`*]", "", code[0]), html)
