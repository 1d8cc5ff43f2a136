"""LiteLLM's spend logs: times, lengths, sessions."""

from __future__ import annotations

from hisearch.base.policies import TraceFormat
from hisearch.traces.importers.logs import LogFields, read_log
from hisearch.traces.reading.source import Source
from hisearch.traces.reading.tables import table_note, table_rows
from hisearch.traces.trace import Trace

FORMAT = TraceFormat(
    "LiteLLM's spend logs.",
    json_fields=(("startTime", "prompt_tokens", "completion_tokens"),),
    csv_fields=(("startTime", "prompt_tokens", "completion_tokens"),),
    names_adapters=True,
    rank=5,
)

_FIELDS = LogFields(
    arrivals=("startTime",),
    inputs=("prompt_tokens",),
    outputs=("completion_tokens",),
    thinking=("metadata.usage_object.completion_tokens_details.reasoning_tokens",),
    ends=("endTime",),
    ids=("request_id", "id"),
    sessions=("session_id", "trace_id"),
    tenants=(
        "team_id",
        "metadata.user_api_key_team_id",
        "end_user",
        "user",
        "metadata.user_api_key_user_id",
        "api_key",
    ),
    models=("model", "model_group"),
    statuses=("status",),
    cache_hits=("cache_hit",),
    bodies=("proxy_server_request.", "model_parameters.", ""),
)


def read(source: Source) -> Trace:
    """Rows of LiteLLM's table ``LiteLLM_SpendLogs`` (github.com/BerriAI/litellm, litellm/proxy/schema.prisma).

    As CSV, JSON lines, an array as ``GET /spend/logs`` answers, or parquet. Times are dates without a zone, in UTC.
    Also what LiteLLM's callbacks write to files, S3 and GCS (``litellm/types/utils.py``, ``StandardLoggingPayload``):
    its times are seconds since 1970, its session is ``trace_id``, from which the table's ``session_id`` is taken
    (``_get_session_id_for_spend_log``; a client that sends none gets one of its own for each call). Calls of one
    session follow each other up, ``startTime`` after the predecessor's ``endTime``. Failures, calls without output
    (embeddings) and answers from LiteLLM's own cache are left out. Grammars are those of ``proxy_server_request`` or
    ``model_parameters``. Prompts' contents are not recorded in general: nothing is shared.
    """
    source.understood.table = table_note(source.path)
    return read_log(source, _FIELDS, table_rows(source.path, source.bad))
