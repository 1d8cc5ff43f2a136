"""Simulates populations of agents and writes the tables of docs/agents.md and its note (``make agents``).

Usage::

    python docs/generate_agents.py [--write | --check] [--only PART,...]

Without either the tables are printed. ``--check`` recomputes a row of each quick table and compares it with the page
(``make lint``); which row follows from the page's text. Every table stands behind a mark with its checksum, so that no
cell changes by hand. Tables: ``agent_tables.PARTS``.
"""

from __future__ import annotations

import argparse
import re
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from agent_tables import PARTS

DOCS = Path(__file__).resolve().parent
PAGES = (DOCS / "agents.md", DOCS / "notes" / "2026-11-agents-published.md")


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def table_text(name: str) -> str:
    """The whole table, in Markdown."""
    table = PARTS[name]()
    return "\n".join(map(_line, [table.head, ["---"] * len(table.head), *(row() for row in table.rows)]))


def _checksum(table: str) -> str:
    return f"{zlib.crc32(table.encode()):08x}"


def _marked(text: str, name: str) -> re.Match[str] | None:
    """The table between its marks in a page's text: groups ``sum`` and ``table``; None where it does not stand."""
    return re.search(rf"<!-- {name}(?: (?P<sum>\w+))? -->\n(?P<table>.*?)\n<!-- /{name} -->", text, re.DOTALL)


def write(parts: Iterable[str], pages: Iterable[Path]) -> None:
    """Put the tables between their marks, on the page that has them."""
    texts = {page: page.read_text(encoding="utf-8") for page in pages}
    for name in parts:
        page, marked = next(((p, m) for p, text in texts.items() if (m := _marked(text, name))), (None, None))
        if page is None or marked is None:
            raise SystemExit(f"no marks <!-- {name} --> … <!-- /{name} --> in {', '.join(map(str, texts))}")
        table = table_text(name)
        whole = f"<!-- {name} {_checksum(table)} -->\n{table}\n<!-- /{name} -->"
        texts[page] = texts[page][: marked.start()] + whole + texts[page][marked.end() :]
    for page, text in texts.items():
        page.write_text(text, encoding="utf-8")


def differences(parts: Iterable[str], pages: Iterable[Path]) -> list[str]:
    """What a recomputed row of each quick table, its checksum, head or number of rows has otherwise than the page."""
    differing = []
    texts = [page.read_text(encoding="utf-8") for page in pages]
    for name in parts:
        marked = next((m for text in texts if (m := _marked(text, name))), None)
        if marked is None:
            differing.append(f"{name}: on no page")
            continue
        head, _, *rows = marked["table"].splitlines()
        table = PARTS[name]()
        if marked["sum"] != _checksum(marked["table"]):
            differing.append(f"{name}: the page's table is not what was written there")
        elif head != _line(table.head) or len(rows) != len(table.rows):
            differing.append(f"{name}: the page has other columns or rows")
        elif not table.costly:
            index = zlib.crc32(marked["table"].encode()) % len(rows)
            computed = _line(table.rows[index]())
            if computed != rows[index]:
                differing.append(f"{name}: the page has\n  {rows[index]}\nand a run gives\n  {computed}")
    return differing


def main() -> None:
    """Simulate, and print, write or compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--write", action="store_true", help="write the pages")
    what.add_argument("--check", action="store_true", help="recompute a row of each quick table; 1 where one differs")
    parser.add_argument("--only", default=",".join(PARTS), help="some parts, by name")
    arguments = parser.parse_args()
    parts = arguments.only.split(",")
    for name in parts:
        if name not in PARTS:
            raise SystemExit(f"no part {name}; known: {', '.join(PARTS)}")
    if arguments.check:
        if differing := differences(parts, PAGES):
            raise SystemExit("\n".join([*differing, "run `make agents`"]))
    elif arguments.write:
        write(parts, PAGES)
    else:
        for name in parts:
            print(f"## {name}\n\n{table_text(name)}\n")


if __name__ == "__main__":
    main()
