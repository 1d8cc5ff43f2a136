"""hisearch's own form, which ``reading.canonical`` reads and writes; recognised by its header."""

from __future__ import annotations

from hisearch.base.policies import TraceFormat
from hisearch.traces.reading.canonical import read_canonical

FORMAT = TraceFormat("hisearch's own form.", times="arrival_s holds seconds from the start")

read = read_canonical
