"""Times of requests: what a column of them is, told by its values, and never taken for something else in silence.

A column holds dates, or numbers since 1970, or numbers from some start. Numbers since 1970 tell their unit by their
size: those of the years 2000 to 2100 lie apart in seconds, milliseconds, microseconds and nanoseconds. Numbers from
a start do not: they are seconds unless the mapping, ``time_unit`` or the column's name says otherwise.
"""

from __future__ import annotations

import datetime
import email.utils
import re
from typing import Any

from hisearch.traces.reading.rows import Fields, RowError, short

#: Unit -> how many of it are a second.
PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
TITLES = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}
#: Seconds since 1970 of the years in which recordings are taken to lie, 2000 to 2099.
EPOCH_S = (946_684_800, 4_102_444_800)
#: No recording is longer: ten years.
LONGEST_S = 10 * 365.25 * 86400

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_NAMED = re.compile(
    r"(?:_(?:(s|secs?|seconds)|(ms|msecs?|millis|milliseconds)|(us|usecs?|micros|microseconds)"
    r"|(ns|nsecs?|nanos|nanoseconds))|(?<=[a-z])(?:()(Ms|Millis)|(Us|Micros)|(Ns|Nanos)))$"
)
_COMMON_LOG = re.compile(
    r"\[?(\d{1,2})/([A-Z][a-z]{2})/(\d{4}):(\d\d:\d\d:\d\d)(?:[.,](\d{1,6}))?(?: ?([+-]\d\d):?(\d\d))?\]?"
)
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_ISO_FRACTION = re.compile(r"([.,]\d{6})\d+")
#: Zones in words behind a date, as databases and Go write them.
_ZONE = re.compile(r"\s*(?:([+-]\d\d:?\d\d)\s+)?(UTC|GMT|Z)$")
_MAIL = re.compile(r"[A-Z][a-z]{2}, \d")
_SPACED_ZONE = re.compile(r"(\d)\s+([+-]\d\d:?\d\d)$")


def unit_named(column: str) -> str | None:
    """The unit that a column's name ends with, as ``start_ms`` and ``startTimeMs`` do; None where it names none."""
    match = _NAMED.search(column)
    if match is None:
        return None
    s, ms, us, ns, _, camel_ms, camel_us, camel_ns = match.groups()
    return "s" if s else "ms" if ms or camel_ms else "us" if us or camel_us else "ns" if ns or camel_ns else None


def parse_date(text: str) -> datetime.datetime | None:
    """A date and time: ISO 8601, as web servers log it, or as in mails; None where it is none."""
    text = text.strip()
    try:
        return datetime.datetime.fromisoformat(text)
    except ValueError:
        pass
    if _MAIL.match(text):
        return _mail_date(text)
    match = _COMMON_LOG.fullmatch(text)
    if match is not None:
        day, month, year, clock, fraction, hours, minutes = match.groups()
        if month not in _MONTHS:
            return None
        zone = f"{hours}:{minutes}" if hours else ""
        text = f"{year}-{_MONTHS.index(month) + 1:02}-{int(day):02} {clock}.{fraction or 0:0<6}{zone}"
    else:
        text = _ZONE.sub(lambda zone: zone.group(1) or "+00:00", text)
        text = _ISO_FRACTION.sub(r"\1", _SPACED_ZONE.sub(r"\1\2", text)).replace("/", "-")
    try:
        return datetime.datetime.fromisoformat(text)
    except ValueError:
        return None


def _mail_date(text: str) -> datetime.datetime | None:
    try:
        return email.utils.parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


def since_1970(value: float) -> str | None:
    """The unit in which a number counts from 1970 to a day of 2000 to 2099; None where it does in none."""
    return next((unit for unit, per in PER_SECOND.items() if EPOCH_S[0] <= value / per < EPOCH_S[1]), None)


class Times:
    """A column of times while it is read. What it is, the first row says; a row of another kind is refused.

    Attributes:
        field: the column.
        form: ``date``, ``epoch`` (numbers since 1970), ``relative`` (numbers from a start); "" before the first row.
        unit: of numbers, one of ``PER_SECOND``.
        said_by: who says the unit: ``stated`` by the user, ``name`` of the column, ``size`` of the numbers, or
            ``default``.
        whole: all numbers so far are whole.
        yearless: dates are of a year that is not known.
    """

    def __init__(self, field: str, unit: str = "auto") -> None:
        self.field = field
        self.form = ""
        named = unit_named(field)
        self.unit = unit if unit != "auto" else named or "s"
        self.said_by = "stated" if unit != "auto" else "name" if named else "default"
        self.whole = True
        self.yearless = False
        self._origin: Any = 0.0
        self._zoned = False

    def seconds(self, row: Fields, field: str | None = None) -> float:
        """Seconds of the row's time from that of the first row, or from the start that the column counts from.

        Args:
            row: the row.
            field: another column of the same clock, such as that of the request's end.

        Raises:
            RowError: it is no time, or of another form or unit than the rows before it.
        """
        field = self.field if field is None else field
        value = row.raw(field)
        if isinstance(value, str) and not _numeric(value):
            moment = parse_date(value)
            if moment is None:
                raise RowError(field, f"expected seconds or a date and time, got {short(value)}")
            value = moment
        if isinstance(value, datetime.datetime):
            return self._of_date(value, field)
        return self._of_number(row.number(field), field)

    def _of_date(self, moment: datetime.datetime, field: str) -> float:
        zoned = moment.tzinfo is not None
        if not 1970 < moment.year < 2100:
            raise RowError(field, f"expected a date of the years 1971 to 2099, got {moment.isoformat(' ')}")
        if not zoned:
            moment = moment.replace(tzinfo=datetime.UTC)
        if not self.form:
            self.form, self._origin, self._zoned = "date", moment, zoned
        if self.form != "date":
            raise RowError(field, f"expected {self.kind}, as in the rows before, got a date")
        if zoned != self._zoned:
            expected = "a date with its zone" if self._zoned else "a date without a zone"
            raise RowError(field, f"expected {expected}, as in the rows before, got {moment.isoformat(' ')}")
        difference: datetime.timedelta = moment - self._origin
        return difference.total_seconds()

    def _of_number(self, value: float, field: str) -> float:
        form, unit = self._form_of(value, field)
        if not self.form:
            self.form, self.unit = form, unit
            self._origin = value if form == "epoch" else 0.0
            if form == "epoch" and self.said_by == "default":
                self.said_by = "size"
        if (form, unit) != (self.form, self.unit):
            got = f"{value:.17g}, which is {_kind(form, unit)} by its size"
            hint = f"; for another unit, {how_to_say(self.field)}" if self.form == "relative" else ""
            raise RowError(field, f"expected {self.kind}, as in the rows before, got {got}{hint}")
        self.whole = self.whole and value.is_integer()
        return float((value - self._origin) / PER_SECOND[self.unit])

    def _form_of(self, value: float, field: str) -> tuple[str, str]:
        """Form and unit of a number.

        Raises:
            RowError: it fits none, or not the unit that was said.
        """
        by_size = since_1970(value)
        free = self.said_by in ("default", "size")
        if by_size is not None and (free or by_size == self.unit):
            return "epoch", by_size
        if value / PER_SECOND[self.unit] <= LONGEST_S:
            return "relative", self.unit
        if by_size is not None:
            said = "column" if self.said_by == "name" else "unit"
            raise RowError(
                field,
                f"expected {TITLES[self.unit]}, as the {said} says, got {value:.17g}, which is {TITLES[by_size]} since "
                f"1970 by its size ({_day(value / PER_SECOND[by_size])}); if so, {how_to_say(self.field, by_size)}",
            )
        raise RowError(
            field,
            f"expected a time within ten years of the start, a number since 1970 or a date, got {value:.17g} "
            f"{TITLES[self.unit]}; for another unit, {how_to_say(self.field)}",
        )

    @property
    def kind(self) -> str:
        """What the column holds, in words."""
        return _kind(self.form, self.unit)

    @property
    def sure(self) -> bool:
        """True where nothing but a wrong file can make the times wrong: dates, numbers since 1970, a stated unit."""
        return self.form in ("date", "epoch") or self.said_by == "stated"

    def moment(self, seconds: float) -> datetime.datetime | None:
        """The date at a time that ``seconds`` returned, in UTC; None for numbers from a start, or without a year."""
        if self.yearless:
            return None
        if self.form == "date":
            start: datetime.datetime = self._origin.astimezone(datetime.UTC)
        elif self.form == "epoch":
            start = _EPOCH + datetime.timedelta(seconds=self._origin / PER_SECOND[self.unit])
        else:
            return None
        return start + datetime.timedelta(seconds=seconds)

    def __str__(self) -> str:
        by = {
            "stated": ", as stated", "name": ", as the column's name says", "size": ", by their size", "default": "",
        }[self.said_by]  # fmt: skip
        if self.form == "date":
            by = "" if self._zoned else " without a zone, taken as UTC"
            by = " without a year" if self.yearless else by
        return f"{self.field} holds {self.kind}{by}"


def how_to_say(column: str, unit: str | None = None) -> str:
    """How a unit is stated: the one that is probably meant, or any."""
    field = f"arrival_{unit}={column}" if unit is not None else f"arrival_ms={column} (or _us, _ns)"
    return f"say --columns {field}, or --time-unit {unit or 'UNIT'} of `hisearch trace import`"


def _day(seconds: float) -> str:
    return f"{_EPOCH + datetime.timedelta(seconds=seconds):%Y-%m-%d}"


def _kind(form: str, unit: str) -> str:
    return "dates" if form == "date" else f"{TITLES[unit]} {'since 1970' if form == 'epoch' else 'from a start'}"


def _numeric(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
