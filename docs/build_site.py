"""Builds the documentation site of one version into ``build/site/VERSION``, beside those built before.

``versions.json`` lists them for the theme's switch, in the form that mike writes (the theme reads it from the folder
above its own). ``index.html`` lists them as links, which work without a server too; the newest is the first.
"""

from __future__ import annotations

import argparse
import html
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SITE = ROOT / "build" / "site"

#: A version's folder: it is part of addresses, and of a path.
NAME = re.compile(r"[0-9A-Za-z][0-9A-Za-z.+_-]*")

_LIST = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>hisearch: versions of the documentation</title>
<h1>hisearch: versions of the documentation</h1>
<ul>
{links}
</ul>
</html>
"""


def build(name: str, site: Path = SITE) -> Path:
    """Build the site of version ``name``, then list all versions of ``site``.

    Raises:
        ValueError: the name is none of a folder.
        subprocess.CalledProcessError: the build failed, or warned of something.
    """
    if not NAME.fullmatch(name):
        raise ValueError(f"expected a version such as 1.2.0, got {name!r}")
    # The theme's notice about another generator's future counts as no warning of these pages.
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "true", "DISABLE_MKDOCS_2_WARNING": "true"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(site / name)]
    subprocess.run(command, cwd=ROOT, env=environment, check=True)
    list_versions(site)
    return site / name


def list_versions(site: Path) -> list[str]:
    """Write ``versions.json`` and ``index.html`` of the versions in ``site``; return them, the newest first."""
    built = [folder.name for folder in site.iterdir() if (folder / "index.html").is_file()]
    names = sorted(built, key=_order, reverse=True)
    entries = [
        {"version": name, "title": name, "aliases": ["latest"] if place == 0 else []}
        for place, name in enumerate(names)
    ]
    (site / "versions.json").write_text(json.dumps(entries, indent=1) + "\n", encoding="utf-8")
    links = "\n".join(f'<li><a href="{html.escape(name)}/index.html">{html.escape(name)}</a></li>' for name in names)
    (site / "index.html").write_text(_LIST.format(links=links), encoding="utf-8")
    return names


def _order(name: str) -> tuple[tuple[int, int, str], ...]:
    """Parts of a version: numbers by value, above words, so that 1.10.0 is newer than 1.9.0 and 1.9.0.dev1."""
    parts = re.findall(r"\d+|[A-Za-z]+", name)
    numbered = tuple((1, int(part), "") if part.isdigit() else (-1, 0, part) for part in parts)
    return (*numbered, (0, 0, ""))


def main(arguments: Sequence[str] | None = None) -> None:
    """Build one version."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("version", nargs="?", default=version("hisearch"), help="folder; hisearch's version if absent")
    parser.add_argument("--site", type=Path, default=SITE, help="where all versions lie")
    given = parser.parse_args(arguments)
    sys.stdout.write(f"{build(given.version, given.site)}\n")


if __name__ == "__main__":
    main()
