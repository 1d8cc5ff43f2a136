"""Writes docs/reference.md: every verb with its arguments and options, from the command line itself.

Usage::

    python docs/generate_cli.py            # prints it
    python docs/generate_cli.py --write    # writes docs/reference.md
    python docs/generate_cli.py --check    # exits with 1 where docs/reference.md differs
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from hisearch.cli.main import app

TARGET = Path(__file__).resolve().parent / "reference.md"

INTRODUCTION = """\
# Reference of the command line

<!-- Written by docs/generate_cli.py from the command line itself; `make docs` writes it again. -->

Every verb, as its `--help` has it. What comes out (files, `--json`, exit codes) is in [cli.md](cli.md).
"""


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command below a group, with its words, in the order of the help."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


def section(words: tuple[str, ...], command: Any) -> str:
    """One command: usage, help, table of parameters."""
    arguments = [_argument(parameter) for parameter in command.params if parameter.param_type_name == "argument"]
    pieces = " ".join(["[OPTIONS]", *arguments])
    rows = [row for parameter in command.params if (row := _row(parameter))]
    text = f"## `hisearch {' '.join(words)}`\n\n```\nhisearch {' '.join(words)} {pieces}\n```\n\n{_help(command)}\n"
    return text + "\n| parameter | meaning |\n| --- | --- |\n" + "\n".join(rows) + "\n"


def _help(command: Any) -> str:
    paragraphs = (command.help or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def _argument(parameter: Any) -> str:
    """How usage names an argument."""
    return parameter.metavar or parameter.name.upper()


def _row(parameter: Any) -> str:
    """A row of the table; "" for ``--help``."""
    if "--help" in parameter.opts:
        return ""
    if parameter.param_type_name == "argument":
        name, needed = _argument(parameter), parameter.required
        meaning = getattr(parameter, "help", "") or ""
    else:
        metavar = "" if parameter.is_flag else f" {parameter.metavar or parameter.name.upper()}"
        name, needed = ", ".join((*parameter.opts, *parameter.secondary_opts)) + metavar, parameter.required
        meaning = parameter.help or ""
    meaning += " Needed." if needed else ""
    default = parameter.default
    if isinstance(default, int | float | str) and not isinstance(default, bool) and default not in ("", None):
        meaning += f" Default: {default}."
    cells = (f"`{name}`", " ".join(meaning.split()))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def text() -> str:
    """The page."""
    sections = [section(words, command) for words, command in commands(typer.main.get_command(app))]
    return INTRODUCTION + "\n" + "\n".join(sections)


def main(arguments: list[str]) -> int:
    """Print, write or check the page."""
    page = text()
    if "--write" in arguments:
        TARGET.write_text(page, encoding="utf-8")
    elif "--check" in arguments:
        if not TARGET.is_file() or TARGET.read_text(encoding="utf-8") != page:
            print("docs/reference.md is not what the command line says: python docs/generate_cli.py --write")
            return 1
    else:
        print(page, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
