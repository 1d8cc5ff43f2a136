"""Hooks of the documentation site (``mkdocs.yml``): pages are read on GitHub and on the site, with the same links.

README.md becomes the first page; CONTRIBUTING.md and CHANGELOG.md join the pages in ``docs``. Headings get GitHub's
fragments. Remarks behind the language of a fence, which tell the tests why a block is slow, are dropped. Tables stand
apart from the markers of those that write them. Files that the site lacks are named.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]

#: Page of the site -> file outside ``docs`` that it is made from.
OUTSIDE = {"index.md": "README.md", "CONTRIBUTING.md": "CONTRIBUTING.md", "CHANGELOG.md": "CHANGELOG.md"}


def on_config(config: Any) -> Any:
    """Set the fragments of headings."""
    config["mdx_configs"].setdefault("toc", {})["slugify"] = slugify
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages outside ``docs``."""
    from mkdocs.structure.files import File

    for uri, name in OUTSIDE.items():
        files.append(File.generated(config, uri, content=inner_links((ROOT / name).read_text(encoding="utf-8"))))
    return files


def on_page_markdown(markdown: str, page: Any = None, **_: Any) -> str:
    """Turn a page as GitHub shows it into one for the site."""
    text = re.sub(r"^```(\w+) [^\n`]*$", r"```\1", markdown, flags=re.MULTILINE)
    text = re.sub(r"^(<!-- .*-->)\n(?=\|)", r"\1\n\n", text, flags=re.MULTILINE)
    text = re.sub(r"^(\|.*\|)\n(?=<!-- )", r"\1\n\n", text, flags=re.MULTILINE)
    folder = "" if page is None else posixpath.dirname(page.file.src_uri)
    return re.sub(r"\[([^\]]+)\]\((\.\./[^)#]+)((?:#[^)]*)?)\)", lambda link: _outer_link(link, folder), text)


def _outer_link(link: re.Match[str], folder: str) -> str:
    """A link that begins with ``../``: to a page of the site, or to a file that is named instead."""
    path = posixpath.normpath(posixpath.join("docs", folder, link[2]))
    if path.startswith("docs/"):
        return link[0]
    uri = next((uri for uri, name in OUTSIDE.items() if name == path), None)
    if uri is None:
        return f"{link[1]} (`{path}`)"
    return f"[{link[1]}]({posixpath.relpath(uri, folder or '.')}{link[3]})"


def inner_links(text: str) -> str:
    """A page of the root as it reads from within ``docs``; files that the site lacks are named, not linked."""
    text = re.sub(r"\]\(docs/", "](", text)
    return re.sub(r"\[([^\]]+)\]\((LICENSE|NOTICE)\)", r"\1", text)


def slugify(title: str, separator: str) -> str:
    """The fragment of a heading as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", separator)
