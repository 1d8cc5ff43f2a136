"""Standard output for results, standard error for everything else."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from hisearch.api.run_folder import plain
from hisearch.specs.errors import RenamedKeyWarning

if TYPE_CHECKING:
    from rich.console import Console

#: Columns of tables that go into a file or a pipe.
PIPE_WIDTH = 120


#: Characters that a terminal or a reader acts upon: controls (ESC among them) and overrides of the reading direction.
_ACTING = {
    code: f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
    for code in (*range(0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A))
    if chr(code) not in "\n\t"
}


def printable(text: str) -> str:
    """``text`` with every character written out that would act upon a terminal: names come from files of others."""
    return text.translate(_ACTING)


def console() -> Console:
    """Standard output: as wide as the terminal, plain text where it is none."""
    from rich.console import Console

    terminal = sys.stdout.isatty()
    return Console(file=sys.stdout, width=None if terminal else PIPE_WIDTH, markup=False, highlight=False, emoji=False)


def say(text: str = "", *, bold: bool = False) -> None:
    """Print a paragraph: wrapped at words on a terminal, one line elsewhere."""
    console().print(printable(text), style="bold" if bold else "", soft_wrap=not sys.stdout.isatty())


def heading(text: str) -> None:
    """Print a heading after an empty line."""
    say()
    say(text, bold=True)


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, numbers: Sequence[int] = ()) -> None:
    """Print a table; ``numbers``: indices of columns that are aligned to the right."""
    from rich import box
    from rich.table import Table

    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for index, column in enumerate(columns):
        grid.add_column(printable(column), justify="right" if index in numbers else "left", overflow="fold")
    for row in rows:
        grid.add_row(*(printable(str(cell)) for cell in row))
    console().print(grid)


def records(rows: Sequence[Mapping[str, object]], *, text: Collection[str] = ()) -> None:
    """Print a table of rows with the same keys, its headings. text: columns that are no numbers; the first if empty."""
    columns = tuple(rows[0]) if rows else ()
    numbers = [at for at, name in enumerate(columns) if name not in (text or columns[:1])]
    table(columns, [tuple(row.values()) for row in rows], numbers=numbers)


def pairs(rows: Mapping[str, object]) -> None:
    """Print names and values in two columns."""
    from rich.table import Table

    grid = Table.grid(padding=(0, 2))
    grid.add_column()
    grid.add_column(overflow="fold")
    for name, value in rows.items():
        grid.add_row(f"  {printable(name)}", printable(str(value)))
    console().print(grid)


def result(as_json: bool, document: Callable[[], Any], show: Callable[[], None]) -> None:
    """Print a result for machines, or for people."""
    if as_json:
        print_json(document())
    else:
        show()


def print_json(data: Any) -> None:
    """Print ``data`` as JSON; see ``run_folder.plain``."""
    sys.stdout.write(json.dumps(plain(data), indent=2, allow_nan=False, ensure_ascii=False) + "\n")


def note(text: str) -> None:
    """A diagnostic on standard error."""
    print(f"hisearch: {printable(text)}", file=sys.stderr, flush=True)


@contextmanager
def renamed_keys_noted() -> Iterator[None]:
    """Note, once each, keys that a document gives under their former names."""
    with warnings.catch_warnings():
        warnings.simplefilter("once", RenamedKeyWarning)
        default_show = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *positional: Any, **keywords: Any) -> None:
            if issubclass(category, RenamedKeyWarning):
                note(str(message))
            else:
                default_show(message, category, *positional, **keywords)

        warnings.showwarning = show
        yield


def warn(lines: Iterable[str], quiet: bool = False) -> None:
    """Warnings on standard error, each once; none if quiet."""
    for line in () if quiet else dict.fromkeys(lines):
        note(f"warning: {line}")
