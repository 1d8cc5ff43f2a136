"""How a table in text separates its columns, told by its header line."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass

#: In the order in which they are preferred where several give as many columns.
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars"}
#: A first line by which spreadsheets say their separator.
_STATED = re.compile(r"sep=([,;\t|])\s*$", re.IGNORECASE)
_DECIMAL_COMMA = re.compile(r"\s*[+-]?\d+,\d+\s*")


@dataclass(frozen=True)
class Dialect:
    """The separator of columns. Where it is no comma, a comma in a number is a decimal one."""

    separator: str = ","

    def value(self, cell: str) -> str:
        """A cell's text, with a decimal point for a decimal comma."""
        if self.separator != "," and "," in cell and _DECIMAL_COMMA.fullmatch(cell):
            return cell.replace(",", ".")
        return cell

    def __str__(self) -> str:
        return f"columns separated by {SEPARATORS.get(self.separator, repr(self.separator))}"


def stated_separator(line: str) -> str | None:
    """The separator that a line such as ``sep=;`` states; None where the line is none."""
    match = _STATED.match(line)
    return match.group(1) if match else None


def dialect_of(header: str) -> Dialect:
    """The dialect of a table by its header: the separator that gives the most columns."""

    def columns(separator: str) -> int:
        try:
            return len(next(csv.reader([header], delimiter=separator), []))
        except csv.Error:
            return 0

    return Dialect(max(SEPARATORS, key=columns))
