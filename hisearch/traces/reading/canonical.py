"""hisearch's own trace form, JSON lines (plain or gzip) and parquet; see docs/traces.md.

A header (the first line, or the parquet schema's metadata) says what the file is; then one row per request,
predecessors before their follow-ups. Written files name what a sequence shares with an earlier one (``shares_with``,
``shared_tokens``); files of others may give block ids or token ids instead.
"""

from __future__ import annotations

import gzip
import io
import itertools
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from hisearch.specs.workloads.workload import LARGEST_RANK
from hisearch.traces.adapters import RequestAdapters, RequestGrammars
from hisearch.traces.agents import AgentArrays
from hisearch.traces.reading.agent_rows import AGENT_FIELDS, AgentRows, agent_columns, agent_header
from hisearch.traces.reading.errors import TraceError
from hisearch.traces.reading.rows import Fields, Order, RowError, json_rows, one_line
from hisearch.traces.reading.source import LARGEST_CLASS, Codes, Requests, Source
from hisearch.traces.reading.tables import header_in, parquet_rows, parquet_schema
from hisearch.traces.reading.text import is_parquet
from hisearch.traces.reading.times import LONGEST_S, PER_SECOND, TITLES, since_1970
from hisearch.traces.trace import Trace

FORMAT = "hisearch-trace"
VERSION = 1

_FIELDS = frozenset({
    "id", "arrival_s", "input_tokens", "output_tokens", "max_output_tokens", "previous", "think_s", "session", "tenant",
    "priority", "model", "shares_with", "shared_tokens", "prefix", "prefix_tokens", "block_ids", "known_tokens",
    "token_ids", "output_token_ids", "thinking_tokens", "grammar", "compile_s",
}) | AGENT_FIELDS  # fmt: skip
_HEADER = ("format", "version", "block_tokens", "open_loop", "agents", "skipped_rows", "import_notes")
#: Characters of a note of a header that are kept, and notes.
_NOTE_CHARACTERS, _MOST_NOTES = 1000, 100
_CONTENT = ("shares_with", "block_ids", "token_ids", "prefix")


def is_header(row: Any) -> bool:
    """True for the first line of a file in this form."""
    return isinstance(row, dict) and row.get("format") == FORMAT


class _Reader:
    """Turns rows into columns; references between requests are by id, to earlier rows."""

    def __init__(self, block_tokens: int, agents: AgentRows) -> None:
        self.block_tokens = block_tokens
        self.agents = agents
        self.requests = Requests()
        self.max_output_tokens: list[int] = []
        self.priority: list[int] = []
        self.shares_with: list[int] = []
        self.shared_tokens: list[int] = []
        self.content = ""
        self._index: dict[str, int] = {}
        # By model and name: the first request that begins with it, and its tokens.
        self._prefixes: dict[tuple[str | None, str], tuple[int, int]] = {}
        self._ranks: dict[str, int] = {}
        self._compile_s: dict[str, float] = {}
        self._order = Order("arrival_s")
        self._names = {"session": Codes(), "tenant": Codes()}
        self._named: dict[str, type] = {}

    def add(self, row: Fields) -> None:
        """Add one row, or raise ``RowError`` and leave everything as it was."""
        unknown = [name for name in row.names() if name not in _FIELDS]
        if unknown:
            raise RowError(unknown[0], f"unknown field; known: {', '.join(sorted(_FIELDS))}")
        name = str(row.label("id")) if "id" in row else str(len(self.requests))
        if name in self._index:
            raise RowError("id", f"{name!r} was used before")
        inputs, outputs = row.tokens("input_tokens"), row.tokens("output_tokens")
        limit = row.count("max_output_tokens", minimum=outputs) if "max_output_tokens" in row else outputs
        thinking = row.count("thinking_tokens", minimum=0, maximum=outputs) if "thinking_tokens" in row else 0
        self.agents.check(row, len(self.requests))
        waits_for = self.agents.waits_for(row, self._index)
        previous = waits_for[-1] if waits_for else self._reference(row, "previous")
        think = self._think(row, previous)
        model = str(row.label("model")) if "model" in row else None
        content, ids, known, shares_with, shared = self._content(row, inputs, outputs, model)
        priority = row.count("priority", minimum=0, maximum=LARGEST_CLASS) if "priority" in row else 0
        if len(self.requests) and ("session" in row) != ("session" in self._named):
            raise RowError("session", "expected in all rows, or in none")
        if len(self.requests) and ("model" in row) != bool(self.requests.model):
            raise RowError("model", "expected in all rows, or in none")
        if shares_with >= 0 and model is not None and self.requests.model[shares_with] != model:
            raise RowError("shares_with", f"expected a request of the same model, {model!r}")
        adapter, grammar = self._adapter(row), self._grammar(row)
        session = self._group(row, "session")
        tenant = self._group(row, "tenant") or 0
        arrival = self._arrival(row, previous)
        self.content = self.content or content
        self._index[name] = self.requests.add(
            arrival, inputs, outputs, previous=previous, think_s=think, session=session, tenant=tenant,
            request_id=name, ids=ids, known_tokens=known, model=model, thinking_tokens=thinking, adapter=adapter,
            adapter_rank=0 if adapter is None else self._ranks[adapter], grammar=grammar,
            compile_s=math.nan if grammar is None else self._compile_s[grammar],
        )  # fmt: skip
        self.agents.add(row, waits_for)
        if "prefix" in row:
            place = (self._index[name], row.count("prefix_tokens"))
            self._prefixes.setdefault((model, str(row.label("prefix"))), place)
        self.max_output_tokens.append(limit)
        self.priority.append(priority)
        self.shares_with.append(shares_with)
        self.shared_tokens.append(shared)

    def _adapter(self, row: Fields) -> str | None:
        """The LoRA adapter of a request that no agent makes; None: the base model."""
        if "adapter" not in row or "agent" in row:
            return None
        name = str(row.label("adapter"))
        rank = row.count("adapter_rank", maximum=LARGEST_RANK) if "adapter_rank" in row else 0
        if self._ranks.setdefault(name, rank) != rank:
            raise RowError("adapter_rank", f"expected {self._ranks[name]}, as adapter {name!r} had before")
        return name

    def _grammar(self, row: Fields) -> str | None:
        """The grammar that a request's output follows; None: free text."""
        if "grammar" not in row:
            if "compile_s" in row:
                raise RowError("compile_s", "expected with a grammar alone")
            return None
        name = str(row.label("grammar"))
        given = row.number("compile_s", maximum=LONGEST_S) if "compile_s" in row else math.nan
        before = self._compile_s.setdefault(name, given)
        if before != given and not (math.isnan(before) and math.isnan(given)):
            had = "none" if math.isnan(before) else f"{before:g}"
            raise RowError("compile_s", f"expected {had}, as grammar {name!r} had before")
        return name

    def _reference(self, row: Fields, field: str) -> int:
        if field not in row:
            return -1
        name = str(row.label(field))
        if name not in self._index:
            raise RowError(field, f"expected the id of an earlier request, got {name!r}")
        return self._index[name]

    def _think(self, row: Fields, previous: int) -> float:
        if "think_s" not in row:
            return 0.0 if "waits_for" in row and "arrival_s" not in row else math.nan
        think = row.number("think_s", maximum=LONGEST_S)
        if think and previous < 0:
            raise RowError("think_s", "expected previous beside it")
        return think

    def _arrival(self, row: Fields, previous: int) -> float:
        if "arrival_s" not in row and previous >= 0:
            return math.nan
        arrival = row.number("arrival_s")
        if arrival > LONGEST_S:
            unit = since_1970(arrival)
            meant = f", which is {TITLES[unit]} since 1970 by its size" if unit else ""
            change = f"; subtract the first and divide by {PER_SECOND[unit]:,}" if unit else ""
            raise RowError("arrival_s", f"expected seconds from the trace's start, got {arrival:.17g}{meant}{change}")
        return self._order.check(arrival) if previous < 0 else arrival

    def _group(self, row: Fields, field: str) -> int | None:
        """A session's or tenant's number: as given, or by names in order of appearance; one kind per file."""
        if field not in row:
            return None
        value = row.label(field)
        kind = self._named.setdefault(field, type(value))
        if type(value) is not kind:
            raise RowError(field, "expected names or numbers throughout the file, not both")
        if isinstance(value, str):
            return self._names[field][value]
        return row.count(field, minimum=0, maximum=LARGEST_CLASS)

    def _content(
        self, row: Fields, inputs: int, outputs: int, model: str | None
    ) -> tuple[str, list[int], int, int, int]:
        """(form, ids, tokens known by them, shares_with, shared_tokens) of a row; form "" where it has no content."""
        forms = [form for form in _CONTENT if form in row]
        # A file may name beginnings and share with requests.
        if len(forms) > 1 or (forms and self.content not in ("", forms[0].replace("prefix", "shares_with"))):
            raise RowError(forms[-1], f"expected one of {', '.join(_CONTENT)} throughout the file")
        form = forms[0] if forms else ""
        if "prefix_tokens" in row and form != "prefix":
            raise RowError("prefix_tokens", "expected prefix beside it")
        if form == "prefix":
            tokens = row.count("prefix_tokens", maximum=inputs)
            earlier, before = self._prefixes.get((model, str(row.label(form))), (-1, tokens))
            if before != tokens:
                raise RowError("prefix_tokens", f"expected {before}, as prefix {row.label(form)!r} had before")
            return "shares_with", [], 0, earlier, tokens if earlier >= 0 else 0
        if form == "shares_with":
            earlier = self._reference(row, form)
            longest = min(inputs + outputs, self.requests.input_tokens[earlier] + self.requests.output_tokens[earlier])
            return form, [], 0, earlier, row.count("shared_tokens", maximum=longest)
        if form == "block_ids":
            return form, *self._blocks(row, inputs, outputs), -1, 0
        if form == "token_ids":
            ids = row.counts(form)
            if len(ids) != inputs:
                raise RowError(form, f"expected {inputs} token ids, got {len(ids)}")
            more = row.counts("output_token_ids") if "output_token_ids" in row else []
            if more and len(more) != outputs:
                raise RowError("output_token_ids", f"expected {outputs} token ids, got {len(more)}")
            return form, ids + more, inputs + len(more), -1, 0
        return "", [], 0, -1, 0

    def _blocks(self, row: Fields, inputs: int, outputs: int) -> tuple[list[int], int]:
        if not self.block_tokens:
            raise RowError("block_ids", "expected block_tokens in the file's header")
        ids = row.counts("block_ids")
        known = min(inputs, len(ids) * self.block_tokens)
        if "known_tokens" in row:
            known = row.count("known_tokens", minimum=0, maximum=inputs + outputs)
        expected = math.ceil(known / self.block_tokens)
        if len(ids) != expected:
            raise RowError("block_ids", f"expected {expected} ids for {known} tokens, got {len(ids)}")
        return ids, known

    def finish(self, source: Source, open_loop: bool) -> Trace:
        """The trace of all rows added."""
        blocks = {"block_ids": self.block_tokens, "token_ids": 1}.get(self.content, 0)
        trace = self.requests.build(
            source, block_tokens=blocks, shares=(self.shares_with, self.shared_tokens),
            shares_block_tokens=self.block_tokens or 1, open_loop=open_loop, from_first_arrival=False,
        )  # fmt: skip
        return replace(
            trace,
            max_output_tokens=np.array(self.max_output_tokens, dtype=np.int64),
            priority=np.array(self.priority, dtype=np.int32),
            agents=self._agents_of(source),
        )

    def _agents_of(self, source: Source) -> AgentArrays | None:
        try:
            return self.agents.finish()
        except ValueError as error:
            raise TraceError.at(str(error), path=source.path, key="agents") from error


def read_canonical(source: Source) -> Trace:
    """Read either file form.

    Follow-ups (rows with ``previous``) wait for their predecessor unless the header's ``open_loop`` says otherwise.
    """
    rows = _parquet_rows(source) if is_parquet(source.path) else json_rows(source.path, source.bad)
    line, header = next(rows, (1, Fields({})))
    try:
        if not header.has("format") or header.raw("format") != FORMAT:
            raise RowError("format", f"expected {FORMAT!r} in the file's header")
        if header.count("version") != VERSION:
            raise RowError("version", f"expected {VERSION}")
        unknown = [name for name in header.names() if name not in _HEADER]
        if unknown:
            raise RowError(unknown[0], f"unknown key of the header; known: {', '.join(_HEADER)}")
        block_tokens = header.count("block_tokens") if "block_tokens" in header else 0
        open_loop = header.raw("open_loop") if "open_loop" in header else False
        if not isinstance(open_loop, bool):
            raise RowError("open_loop", "expected true or false")
        skipped = header.count("skipped_rows", minimum=0) if "skipped_rows" in header else 0
        import_notes = _import_notes(header)
        agents = AgentRows(header.raw("agents") if "agents" in header else None)
    except RowError as error:
        raise TraceError.at(error.message, path=source.path, line=line, key=error.field) from error
    reader = _Reader(block_tokens, agents)
    for line, row in rows:
        with source.bad.row(line):
            reader.add(row)
    trace = reader.finish(source, open_loop)
    return replace(trace, skipped_rows=trace.skipped_rows + skipped, import_notes=import_notes)


def _import_notes(header: Fields) -> tuple[str, ...]:
    """What the header says of the file that this one was made of; a line each."""
    notes = header.raw("import_notes") if "import_notes" in header else []
    if not isinstance(notes, list) or not all(isinstance(note, str) for note in notes):
        raise RowError("import_notes", "expected a list of texts")
    return tuple(one_line(note[:_NOTE_CHARACTERS]) for note in notes[:_MOST_NOTES])


def _parquet_rows(source: Source) -> Iterator[tuple[int, Fields]]:
    """Header and rows of a parquet file; a row's line is its number, from 1."""
    yield 1, Fields(header_in(parquet_schema(source.path)[1], FORMAT))
    yield from parquet_rows(source.path)


def write_trace(trace: Trace, path: Path) -> None:
    """Write ``trace`` as ``.jsonl``, ``.jsonl.gz`` or ``.parquet``, by the path's ending.

    Raises:
        TraceError: another ending, or two requests of the same name, between which references could not distinguish.
    """
    if len(set(trace.request_ids)) < len(trace):
        twice = next(name for name, count in Counter(trace.request_ids).items() if count > 1)
        raise TraceError.at(f"cannot be written: two requests have the id '{twice}'", path=path, key="id")
    header = {"format": FORMAT, "version": VERSION, "open_loop": trace.open_loop}
    header |= {"block_tokens": trace.block_tokens} if trace.block_tokens > 1 else {}
    header |= {"skipped_rows": trace.skipped_rows} if trace.skipped_rows else {}
    header |= {"import_notes": list(trace.import_notes)} if trace.import_notes else {}
    header |= {"agents": agent_header(trace.agents)} if trace.agents is not None else {}
    if path.name.endswith(".parquet") and trace.agents is not None:
        raise TraceError.at("agents are written as .jsonl or .jsonl.gz", path=path)
    if path.name.endswith(".parquet"):
        _write_parquet(trace, header, path)
    elif path.name.endswith((".jsonl", ".jsonl.gz")):
        with path.open("wb") as raw:
            # No name and no time in the archive's header: equal traces make equal files.
            packed = gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0) if path.name.endswith(".gz") else raw
            with io.TextIOWrapper(packed, encoding="utf-8", newline="\n") as text:
                text.write(json.dumps(header) + "\n")
                for row in _written_rows(trace):
                    text.write(json.dumps(row, ensure_ascii=False) + "\n")
    else:
        raise TraceError.at("expected a name ending in .jsonl, .jsonl.gz or .parquet", path=path)


def _written_rows(trace: Trace) -> Iterator[dict[str, Any]]:
    """One dictionary per request, fields without a value left out."""
    names = trace.request_ids
    models = trace.models
    adapters, grammars = _written(trace, trace.adapters, "adapter_rank"), _written(trace, trace.grammars, "compile_s")
    model_names = [None] * len(names) if models is None else [models.names[k] for k in models.model.tolist()]
    columns: list[np.ndarray] = [
        trace.arrival_s, trace.input_tokens, trace.output_tokens, trace.max_output_tokens, trace.previous,
        trace.think_s, trace.session, trace.tenant, trace.priority, trace.shares_with, trace.shared_tokens,
        trace.thinking_tokens,
    ]  # fmt: skip
    no_agents: Iterable[dict[str, Any]] = itertools.repeat({}, len(names))
    agent_rows = no_agents if trace.agents is None else agent_columns(trace.agents)
    for name, model, adapter, grammar, agent_row, values in zip(
        names, model_names, adapters, grammars, agent_rows, zip(*(column.tolist() for column in columns), strict=True),
        strict=True,
    ):  # fmt: skip
        arrival, inputs, outputs, limit, previous, think, session, tenant, priority, shares_with, shared, thinking = (
            values
        )
        row: dict[str, Any] = {"id": name}
        if not math.isnan(arrival):
            row["arrival_s"] = arrival
        row |= {"input_tokens": inputs, "output_tokens": outputs, "max_output_tokens": limit}
        row |= {"thinking_tokens": thinking} if thinking else {}
        if previous >= 0:
            row["previous"] = names[previous]
            if not math.isnan(think):
                row["think_s"] = think
        row |= {"session": session, "tenant": tenant, "priority": priority}
        row |= {"model": model} if model is not None else {}
        row |= adapter | grammar
        if shared:
            row |= {"shares_with": names[shares_with], "shared_tokens": shared}
        yield row | agent_row


def _written(trace: Trace, named: RequestAdapters | RequestGrammars | None, second: str) -> Iterable[dict[str, Any]]:
    """Of each request what its row says of its adapter or its grammar; ``second``: the field behind the name."""
    if named is None:
        return itertools.repeat({}, len(trace))
    rows: list[dict[str, Any]] = [
        {named._fields[2]: name} | ({second: value} if value == value and (value or second == "compile_s") else {})
        for name, value in zip(named.names, named[1].tolist(), strict=True)
    ]
    return [rows[k] if k >= 0 else {} for k in named[2].tolist()]


def _write_parquet(trace: Trace, header: dict[str, Any], path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    integers = ("input_tokens", "output_tokens", "max_output_tokens", "session", "tenant", "priority", "shared_tokens")
    schema = pa.schema(
        [("id", pa.string()), ("arrival_s", pa.float64()), ("think_s", pa.float64())]
        + [(name, pa.int64()) for name in integers]
        + [("previous", pa.string()), ("shares_with", pa.string())]
        + [("model", pa.string())] * (trace.models is not None)
        + [("thinking_tokens", pa.int64())] * bool(trace.thinking_tokens.any())
        + [("adapter", pa.string()), ("adapter_rank", pa.int64())] * (trace.adapters is not None)
        + [("grammar", pa.string()), ("compile_s", pa.float64())] * (trace.grammars is not None),
        metadata={FORMAT: json.dumps(header)},
    )
    pq.write_table(pa.Table.from_pylist(list(_written_rows(trace)), schema=schema), path)
