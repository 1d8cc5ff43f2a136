"""Simulates populations of agents and writes the tables of docs/agents.md and its note (``make agents``).

Usage::

    python docs/generate_agents.py [--write | --check] [--only PART,...]

Without either the tables are printed. ``--check`` recomputes a row of each quick table and compares it with the page
(``make lint``); which row follows from the page's text. Tables: ``agent_tables.PARTS``.
"""

from __future__ import annotations

import argparse
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


def _between(text: str, name: str) -> tuple[int, int]:
    """Where the table stands in a page's text; (-1, -1) where it does not."""
    begin, end = f"<!-- {name} -->\n", f"\n<!-- /{name} -->"
    at = text.find(begin)
    return (at + len(begin), text.find(end)) if at >= 0 and end in text else (-1, -1)


def write(parts: Iterable[str], pages: Iterable[Path]) -> None:
    """Put the tables between their marks, on the page that has them."""
    texts = {page: page.read_text(encoding="utf-8") for page in pages}
    for name in parts:
        page = next((page for page, text in texts.items() if _between(text, name)[0] >= 0), None)
        if page is None:
            raise SystemExit(f"no marks <!-- {name} --> … <!-- /{name} --> in {', '.join(map(str, texts))}")
        first, after = _between(texts[page], name)
        texts[page] = texts[page][:first] + table_text(name) + texts[page][after:]
    for page, text in texts.items():
        page.write_text(text, encoding="utf-8")


def differences(parts: Iterable[str], pages: Iterable[Path]) -> list[str]:
    """What a recomputed row of each quick table, its head or its number of rows has otherwise than the page."""
    found = []
    texts = [page.read_text(encoding="utf-8") for page in pages]
    for name in parts:
        text = next((text for text in texts if _between(text, name)[0] >= 0), None)
        if text is None:
            found.append(f"{name}: on no page")
            continue
        first, after = _between(text, name)
        head, _, *rows = text[first:after].splitlines()
        table = PARTS[name]()
        if head != _line(table.head) or len(rows) != len(table.rows):
            found.append(f"{name}: the page has other columns or rows")
        elif not table.costly:
            index = zlib.crc32(text[first:after].encode()) % len(rows)
            computed = _line(table.rows[index]())
            if computed != rows[index]:
                found.append(f"{name}: the page has\n  {rows[index]}\nand a run gives\n  {computed}")
    return found


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
        if found := differences(parts, PAGES):
            raise SystemExit("\n".join([*found, "run `make agents`"]))
    elif arguments.write:
        write(parts, PAGES)
    else:
        for name in parts:
            print(f"## {name}\n\n{table_text(name)}\n")


if __name__ == "__main__":
    main()
