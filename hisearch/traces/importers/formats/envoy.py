"""JSON access logs of Envoy's AI gateway, and of others that name token counts as OpenTelemetry does."""

from __future__ import annotations

from hisearch.base.policies import TraceFormat
from hisearch.traces.importers.logs import LogFields, json_log_rows, read_log
from hisearch.traces.reading.source import Source
from hisearch.traces.trace import Trace

FORMAT = TraceFormat(
    "JSON access logs of Envoy (llm-d).",
    json_fields=(
        ("gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens"),
        ("attributes.gen_ai.usage.input_tokens", "attributes.gen_ai.usage.output_tokens"),
        ("genai_tokens_input", "genai_tokens_output"),
        ("llm_input_token", "llm_output_token"),
    ),
    among_lines=True,
    names_adapters=True,
    rank=6,
)

_FIELDS = LogFields(
    arrivals=("start_time", "start-time", "startTime", "@timestamp", "timestamp", "time", "ts"),
    inputs=(
        "gen_ai.usage.input_tokens",
        "attributes.gen_ai.usage.input_tokens",
        "genai_tokens_input",
        "llm_input_token",
    ),
    outputs=(
        "gen_ai.usage.output_tokens",
        "attributes.gen_ai.usage.output_tokens",
        "genai_tokens_output",
        "llm_output_token",
    ),
    durations_ms=("duration", "duration_ms"),
    ids=("x-request-id", "request_id", "x_request_id"),
    sessions=("session.id", "gen_ai.conversation.id", "x-session-id", "session_id"),
    tenants=("tenant", "x-tenant", "user", "x-user-id"),
    models=(
        "gen_ai.request.model",
        "attributes.gen_ai.request.model",
        "gen_ai.response.model",
        "genai_model_name",
        "model",
    ),
    statuses=("response_code", "http.response.status_code", "status_code", "status"),
)


def read(source: Source) -> Trace:
    """Access logs in JSON of Envoy, which llm-d and Envoy AI Gateway stand on.

    Which fields a log has is the operator's choice (``EnvoyProxy``, ``accessLog.settings.format.json``; see
    aigateway.envoyproxy.io/docs/capabilities/observability/accesslogs). Read are ``start_time`` (``%START_TIME%``),
    ``duration`` (``%DURATION%``, milliseconds), ``response_code``, ``x-request-id``, ``session.id``, and the token
    counts ``gen_ai.usage.input_tokens`` and ``gen_ai.usage.output_tokens``
    (``%DYNAMIC_METADATA(io.envoy.ai_gateway:llm_input_token)%``); before January 2026 its examples called them
    ``genai_tokens_input`` and ``genai_tokens_output`` (envoyproxy/ai-gateway, pull request 1797). A log without them
    cannot be read. Rows of 400 and
    more, and rows without token counts, are left out. Contents are not recorded: nothing is shared.
    """
    return read_log(source, _FIELDS, json_log_rows(source))
