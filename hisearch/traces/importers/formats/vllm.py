"""vLLM's own request logs, in plain text."""

from __future__ import annotations

import re
from array import array
from dataclasses import dataclass, replace

import numpy as np

from hisearch.base.policies import TraceFormat
from hisearch.traces.reading.errors import TraceError
from hisearch.traces.reading.rows import MAX_TOKENS, Fields, RowError
from hisearch.traces.reading.source import Requests, Source
from hisearch.traces.reading.text import lines, open_text
from hisearch.traces.reading.times import Times
from hisearch.traces.trace import Trace

FORMAT = TraceFormat(
    "vLLM's request logs.",
    line_pattern=r"Received request \S+: (?:prompt: |params: )",
    rank=8,
    quantum_s=1.0,  # its times are whole seconds
)

_RECEIVED = re.compile(r"Received request (\S+): (?:prompt|params): ")
_DETAILS = re.compile(r"Request (\S+) details: prompt: ")
_GENERATED = re.compile(r"Generated response (\S+?)( \(streaming (?:delta|complete)\))?: output: ")
# The last of these in a line is vLLM's own: the ones before it may stand in the prompt's text.
_PROMPT_IDS = re.compile(r".*prompt_token_ids: (?:None|\[([\d, ]*)\])", re.DOTALL)
_OUTPUT_IDS = re.compile(r".*output_token_ids: (?:None|[\[(]([\d, ]*)[\])])", re.DOTALL)
_COMPLETE = re.compile(r"<streaming_complete: (\d{1,9}) tokens>")
_MAX_TOKENS = re.compile(r"[ (]max_tokens=(\d{1,9})\b")
_TIME = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?)|\b(\d\d)-(\d\d) (\d\d:\d\d:\d\d)")
#: Year of logs that name none: one that has 29 February. A log that goes on in January goes on in the next.
_YEAR = 2000
#: Prompts of one and the same greatest length, from which on they are taken to be cut by ``--max-log-len``.
_CUT = 5


@dataclass
class _Logged:
    """A request as far as the log has told of it."""

    line: int
    at_s: float
    ids: array[int] | None = None
    outputs: int = 0
    deltas: int = 0
    limit: int | None = None


class _Clock:
    """Times of log lines; vLLM's own have no year."""

    def __init__(self, source: Source) -> None:
        self.times: Times = source.times("time")
        self.year, self.month = _YEAR, 0

    def seconds(self, head: str) -> float:
        """Seconds of a line's time, which stands before its message."""
        match = _TIME.search(head)
        if match is None:
            raise RowError("time", "expected a date and time before the message")
        full, month, day, clock = match.groups()
        if full is None:
            self.year += int(month) < self.month - 6
            self.month = int(month)
            full = f"{self.year}-{month}-{day} {clock}"
            self.times.yearless = True
        return self.times.seconds(Fields({self.times.field: full}))


def read(source: Source) -> Trace:
    """Logs of vLLM's ``RequestLogger`` (github.com/vllm-project/vllm, vllm/entrypoints/logger.py), as it prints them.

    Prompts' lengths are their ``prompt_token_ids``, which ``--enable-log-requests`` writes (before 0.10: by default;
    since then at ``VLLM_LOGGING_LEVEL=DEBUG``), outputs' lengths their ``output_token_ids``, which
    ``--enable-log-outputs`` writes. Token ids tell which prompts share a prefix. ``max_tokens`` is the declared limit.
    ``--enable-log-request-prompts`` alone writes the first 512 at INFO: such prompts are warned of as cut.
    Requests without an answer in the log are left out. Sessions are not recorded. ``--max-log-len`` cuts both lists.
    """
    logged = _logged(source)
    if logged and all(request.ids is None for request in logged.values()):
        message = "absent: vLLM writes it with --enable-log-requests and VLLM_LOGGING_LEVEL=DEBUG"
        raise TraceError.at(message, path=source.path, key="prompt_token_ids")
    if logged and not any(request.outputs or request.deltas for request in logged.values()):
        message = "absent: vLLM writes it with --enable-log-requests --enable-log-outputs"
        raise TraceError.at(message, path=source.path, key="output_token_ids")
    requests = Requests()
    limits: list[int] = []
    for name, request in logged.items():
        outputs = request.outputs or request.deltas
        if not request.ids or not outputs:
            source.understood.leave_out(request.line, "no answer" if request.ids else "no prompt_token_ids")
            continue
        requests.add(
            request.at_s, len(request.ids), outputs, request_id=name, ids=request.ids, known_tokens=len(request.ids)
        )
        limits.append(max(request.limit or outputs, outputs))
    places = requests.sort_by_time(source)
    longest = max(requests.input_tokens, default=0)
    same = requests.input_tokens.count(longest)
    warnings = []
    if same >= _CUT and same > len(requests) // 20 and same < len(requests):
        warnings.append(
            f"{same} prompts have {longest:,} token ids, and none has more: if --max-log-len cut them, they are longer"
        )
    trace = requests.build(source, block_tokens=1, warnings=warnings)
    return replace(trace, max_output_tokens=np.array([limits[k] for k in places], dtype=np.int64))


def _logged(source: Source) -> dict[str, _Logged]:
    """Requests by name, in the order in which they were received."""
    logged: dict[str, _Logged] = {}
    clock = _Clock(source)
    with open_text(source.path) as text:
        for line, content in enumerate(lines(text, source.path), start=1):
            if "Received request " not in content and "details: " not in content and "Generated resp" not in content:
                continue
            with source.bad.row(line):
                _take(logged, clock, line, content)
    return logged


def _take(logged: dict[str, _Logged], clock: _Clock, line: int, content: str) -> None:
    """What one line says."""
    details = _DETAILS.search(content)
    received = None if details else _RECEIVED.search(content)
    generated = None if details or received else _GENERATED.search(content)
    match = details or received or generated
    if match is None:
        return
    name = match.group(1)
    if generated is not None:
        request = logged.get(name) or logged.get(name.rpartition("-")[0]) or logged.get(f"{name}-0")
        if request is not None:
            _answer(request, generated.group(2) or "", content)
        return
    request = logged.get(name)
    if request is None:
        request = logged.setdefault(name, _Logged(line, clock.seconds(content[: match.start()])))
    ids = _PROMPT_IDS.match(content)
    if ids is not None and ids.group(1) is not None:
        prompt_ids = _ids(ids.group(1))
        # With --enable-log-request-prompts a preview of 512 ids follows the complete list.
        if request.ids is None or len(prompt_ids) > len(request.ids):
            request.ids = prompt_ids
    limits = _MAX_TOKENS.findall(content)
    if received is not None and limits:
        request.limit = int(limits[-1])


def _answer(request: _Logged, streaming: str, content: str) -> None:
    ids, complete = _OUTPUT_IDS.match(content), _COMPLETE.search(content)
    count = len(_ids(ids.group(1))) if ids is not None and ids.group(1) is not None else 0
    if "delta" in streaming:
        request.deltas += count
    elif count:
        request.outputs = count
    elif complete is not None:
        request.outputs = min(int(complete.group(1)), MAX_TOKENS)


def _ids(text: str) -> array[int]:
    try:
        return array("q", [int(number) for number in text.split(",") if number.strip()])
    except (ValueError, OverflowError):
        raise RowError("token_ids", "expected a list of whole numbers") from None
