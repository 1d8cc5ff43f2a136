"""Trace formats, a file each.

To add one: a file that assigns a ``TraceFormat`` to ``FORMAT`` (see ``base.policies``), which says by which fields a
file is recognised and what it does not record, and that has ``read(source) -> Trace``. It adds each row to
``reading.source.Requests`` within ``source.bad.row``, which counts broken ones, and returns what these build. Where the
format does not define the unit of its times, ``source.times(column)`` reads them. Rows that come in any order are
sorted by ``Requests.sort_by_time`` before one refers to another. Helpers of several formats stand beside this folder.
A section of docs/traces.md and a test of a small file written by hand go with it; nothing else lists the formats.

Imports modules of ``importers``, ``reading`` and what is below them.
"""
