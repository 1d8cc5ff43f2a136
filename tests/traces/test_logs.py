"""Logs of gateways and engines, from small files written by hand."""

from __future__ import annotations

import json

import pytest
from test_importers import read, refused

from hisearch.traces.importers import detect_format

LITELLM = {
    "request_id": "a", "call_type": "acompletion", "spend": 0.1, "total_tokens": 150, "prompt_tokens": 100,
    "completion_tokens": 50, "startTime": "2026-08-01T09:00:00.500000", "endTime": "2026-08-01T09:00:04.500000",
    "model": "llama", "cache_hit": "False", "session_id": "s", "team_id": None, "user": "ann", "status": "success",
}  # fmt: skip


def at(second: float, length: float) -> dict[str, str]:
    return {"startTime": f"2026-08-01T09:00:{second:09.6f}", "endTime": f"2026-08-01T09:00:{second + length:09.6f}"}


def test_litellm(write):
    rows = [
        LITELLM | {"request_id": "c", "prompt_tokens": 300} | at(9, 2),
        LITELLM,
        LITELLM | {"request_id": "b", "session_id": "u", "user": "bob"} | at(1, 2),
        LITELLM | {"request_id": "d"} | at(10, 5),
        LITELLM | {"request_id": "x", "status": "failure", "completion_tokens": 0} | at(3, 1),
        LITELLM | {"request_id": "y", "cache_hit": "True"} | at(4, 1),
        LITELLM | {"request_id": "z", "completion_tokens": 0} | at(5, 1),
    ]
    path = write("spend.jsonl", rows)
    assert detect_format(path) == "litellm"
    trace = read(path)
    assert trace.request_ids == ["a", "b", "c", "d"]
    assert trace.arrival_s.tolist() == [0.0, 0.5, 8.5, 9.5]
    # c follows a up; d came while c was still served, so it follows a up too.
    assert trace.previous.tolist() == [-1, -1, 0, 0]
    assert trace.think_s.tolist() == [0.0, 0.0, 4.5, 5.5]
    assert trace.tenant.tolist() == [1, 2, 0, 0] or len(set(trace.tenant.tolist())) == 2
    assert not trace.open_loop
    assert trace.models is None
    assert (
        "3 rows left out: failed (line 5); answered from the gateway's cache (line 6); no output (line 7)"
        in trace.notes
    )
    assert trace.skipped_rows == 3, "notes and statistics give one number"
    assert "startTime holds dates without a zone, taken as UTC; 4 requests" in trace.notes[0]
    mixed = read(write("m.jsonl", [LITELLM, LITELLM | {"request_id": "b", "model": "qwen"}]))
    assert mixed.models.names == ("llama", "qwen")
    assert "ask for 2 models: llama and qwen" in mixed.warnings[0]
    header = "startTime,endTime,prompt_tokens,completion_tokens,session_id\n"
    table = read(write("t.csv", header + "2026-08-01 09:00:00,2026-08-01 09:00:02,10,5,\n"))
    assert table.input_tokens.tolist() == [10]


def test_what_litellms_callbacks_write(write):
    def call(name: str, second: float, **more: object) -> dict[str, object]:
        start = 1785574800.0 + second
        times = {"startTime": start, "endTime": start + 2.0, "completionStartTime": start + 0.4}
        lengths = {"prompt_tokens": 100, "completion_tokens": 50, "total_tokens": 150}
        of_key = {"metadata": {"user_api_key_team_id": f"team of {name[0]}"}}
        return (
            {"id": name, "trace_id": name[0], "status": "success", "cache_hit": None} | times | lengths | of_key | more
        )

    rows = [call("a1", 0.25), call("a2", 5.25), call("b1", 1.25), call("b2", 9.25, status="failure")]
    path = write("callbacks.jsonl", rows)
    assert detect_format(path) == "litellm"
    trace = read(path)
    assert trace.request_ids == ["a1", "b1", "a2"]
    assert trace.arrival_s.tolist() == [0.0, 1.0, 5.0]
    assert trace.previous.tolist() == [-1, -1, 0]
    assert trace.think_s.tolist() == [0.0, 0.0, 3.0]
    assert len(set(trace.tenant.tolist())) == 2
    assert "2026-08-01 09:00:00" in trace.notes[0]


USAGE = {"prompt_tokens": 30, "completion_tokens": 7, "total_tokens": 37}


@pytest.mark.parametrize(
    "row",
    [
        {"id": "r", "object": "chat.completion", "created": 1785574800, "model": "m", "usage": USAGE},
        {"timestamp": "2026-08-01T09:00:00Z", "model": "m", "response": {"created": 1, "usage": USAGE}},
        {"created_at": 1785574800000, "response": {"body": {"id": "r", "usage": USAGE}}},
        {"ts": 1785574800.25, "usage": {"input_tokens": 30, "output_tokens": 7}},
        {"started_at": 1785574800123, "ai": {"proxy": {"usage": USAGE}}},
    ],
)
def test_openai(write, row):
    path = write("log.jsonl", [{"msg": "started"}, row, {"msg": "GET /health"}])
    assert detect_format(path) == "openai"
    trace = read(path)
    assert (trace.input_tokens.tolist(), trace.output_tokens.tolist()) == ([30], [7])
    assert "2026-08-01 09:00:00" in trace.notes[0]
    assert "2 rows left out: no input and no output tokens (lines 1 and 3)" in trace.notes


def test_openai_sessions_and_whole_seconds(write):
    def row(second: int, **more: object) -> dict[str, object]:
        return {"created": 1785574800 + second, "usage": USAGE} | more

    trace = read(write("log.jsonl", [row(k // 3) for k in range(12)]))
    assert "quantised to 1 s" in trace.warnings[-1]
    assert trace.open_loop
    rows = [row(k, session_id="s", start_time=1785574800.5 + 10 * k, duration_ms=2000) for k in range(3)]
    chained = read(write("log.jsonl", rows))
    assert chained.previous.tolist() == [-1, 0, 1]
    assert chained.think_s.tolist() == [0, 8, 8]
    assert "no time of arrival; expected one of request_time" in refused(write("n.jsonl", [{"usage": USAGE}]))
    assert refused(write("n.jsonl", [{"created": 1, "usage": USAGE | {"completion_tokens": 0}}])).endswith(
        "no requests in the file: 1 row left out: no output (line 1)"
    )


def test_json_among_lines_of_plain_text(write):
    row = json.dumps({"created": 1785574800, "usage": USAGE})
    path = write(
        "pod.log", f"INFO:     Started server, process [1]\n{row}\n10.0.0.1 - GET /health 200\n{row}\n{{oops\n"
    )
    assert detect_format(path) == "openai"
    assert "pod.log:5: expected a JSON object" in refused(path)
    trace = read(path, skip_bad=1)
    assert len(trace) == 2
    assert "2 rows left out: no JSON object (lines 1 and 3)" in trace.notes


def test_kongs_own_fields(write):
    def row(at: int, status: int) -> dict[str, object]:
        return {
            "started_at": 1785574800123 + at, "latencies": {"request": 1500, "kong": 3}, "request": {"id": f"r{at}"},
            "response": {"status": status}, "consumer": {"username": "ann"}, "session_id": "s",
            "ai": {"proxy": {"usage": USAGE, "meta": {"response_model": "m"}}},
        }  # fmt: skip

    trace = read(write("kong.jsonl", [row(0, 200), row(4000, 200), row(5000, 503)]))
    assert trace.request_ids == ["r0", "r4000"]
    assert trace.think_s.tolist() == [0.0, 2.5]
    assert "1 row left out: failed (line 3)" in trace.notes


def test_clients_that_went_away(write):
    """nginx's 499: the engine had served them until then."""
    row = {"created": 1785574800, "status": 200, "usage": USAGE}
    gone = row | {"status": 499, "created": 1785574801}
    nothing = gone | {"usage": USAGE | {"completion_tokens": 0}}
    path = write("log.jsonl", [row, gone, nothing])
    trace = read(path)
    assert trace.output_tokens.tolist() == [7, 7]
    assert any("1 cancelled request kept" in note and "line 2" in note for note in trace.notes)
    assert "1 row left out: cancelled before a first token (line 3)" in trace.notes
    assert len(read(path, cancelled="leave_out")) == 1


def test_envoys_former_names(write):
    row = {
        "start_time": "2026-01-01T09:00:00.250Z", "response_code": 200, "duration": 108,
        "genai_model_name": "qwen2.5:0.5b", "genai_tokens_input": 44, "genai_tokens_output": 12,
    }  # fmt: skip
    path = write("access.jsonl", [row, row | {"start_time": "2026-01-01T09:00:01.250Z"}])
    assert detect_format(path) == "envoy"
    trace = read(path)
    assert (trace.input_tokens.tolist(), trace.output_tokens.tolist()) == ([44, 44], [12, 12])


def test_envoy(write):
    row = {
        "start_time": "2026-08-01T09:00:00.250Z", "method": "POST", "response_code": 200, "duration": 1500,
        "x-request-id": "r1", "gen_ai.request.model": "m", "gen_ai.usage.input_tokens": 30,
        "gen_ai.usage.output_tokens": 7, "session.id": "s",
    }  # fmt: skip
    none = {"gen_ai.usage.input_tokens": "-", "gen_ai.usage.output_tokens": "-"}
    rows = [
        row | none | {"method": "GET"},
        row,
        row | {"start_time": "2026-08-01T09:00:05.250Z", "x-request-id": "r2"},
        row | {"start_time": "2026-08-01T09:00:06.250Z", "response_code": "503"},
    ]
    path = write("access.jsonl", rows)
    assert detect_format(path) == "envoy"
    trace = read(path)
    assert trace.request_ids == ["r1", "r2"]
    assert trace.previous.tolist() == [-1, 0]
    assert trace.think_s.tolist() == [0.0, 3.5]
    assert "2 rows left out: no input and no output tokens (line 1); failed (line 4)" in trace.notes


def vllm(name: str, second: int, prompt: str, date: str = "08-01 09:00") -> str:
    return (
        f"INFO {date}:{second:02} [logger.py:39] Received request {name}: prompt: 'a [1, 2], prompt_token_ids: [9]', "
        f"params: SamplingParams(n=1, max_tokens=64, min_tokens=0), prompt_token_ids: {prompt}, lora_request: None.\n"
    )


def answered(name: str, ids: str, form: str = "") -> str:
    return (
        f"(APIServer pid=1) INFO 08-01 09:00:09 [logger.py:71] Generated response {name}{form}: output: 'x', "
        f"output_token_ids: {ids}, finish_reason: stop\n"
    )


def test_vllm(write):
    log = (
        "INFO 08-01 08:59:00 [launcher.py:34] Route: /v1/rerank, Methods: POST\n"
        + vllm("cmpl-a-0", 1, "[1, 2, 3, 4]")
        + vllm("b", 3, "[1, 2, 3, 7, 8]")
        + vllm("c", 4, "[5]")
        + answered("b", "[6, 6]", " (streaming delta)")
        + answered("b", "[6]", " (streaming delta)")
        + answered("cmpl-a-0", "[7, 7, 7, 7]")
    )
    path = write("vllm.log", log)
    assert detect_format(path) == "vllm"
    trace = read(path, spread_arrivals_s=0)
    assert trace.request_ids == ["cmpl-a-0", "b"]
    assert trace.arrival_s.tolist() == [0.0, 2.0]
    assert trace.input_tokens.tolist() == [4, 5]
    assert trace.output_tokens.tolist() == [4, 3]
    assert trace.max_output_tokens.tolist() == [64, 64]
    assert trace.shared_tokens.tolist() == [0, 3]
    assert "1 row left out: no answer (line 4)" in trace.notes
    assert "dates without a year" in trace.notes[0]


def test_vllm_at_debug_level_and_over_new_year(write):
    def request(name: str, date: str) -> str:
        return (
            f"DEBUG {date} [request_logger.py:53] Request {name} details: prompt: 'x', prompt_token_ids: [1, 2], "
            f"prompt_embeds shape: None.\n"
            f"INFO {date} [request_logger.py:63] Received request {name}: params: SamplingParams(max_tokens=9), "
            f"lora_request: None.\n"
        )

    done = " (streaming complete): output: '<streaming_complete: 8 tokens>', output_token_ids: None, finish_reason: x\n"
    log = request("a", "12-31 23:59:59") + request("b", "01-01 00:00:01")
    log += "".join(f"INFO 01-01 00:00:02 [l.py:98] Generated response {name}{done}" for name in "ab")
    trace = read(write("vllm.log", log), spread_arrivals_s=0)
    assert trace.arrival_s.tolist() == [0.0, 2.0]
    assert trace.output_tokens.tolist() == [8, 8]
    assert trace.max_output_tokens.tolist() == [9, 9]


def test_vllm_logs_that_lack_lengths_say_which(write):
    asked = vllm("a", 1, "None")
    assert "prompt_token_ids: absent: vLLM writes it with --enable-log-requests" in refused(write("v.log", asked))
    asked = vllm("a", 1, "[1, 2]")
    assert "output_token_ids: absent: vLLM writes it with" in refused(write("v.log", asked))


def test_a_preview_of_a_vllm_prompt_does_not_replace_the_complete_one(write):
    ids = list(range(600))
    head = "08-01 09:00:01 [request_logger.py:90]"
    details = f"DEBUG {head} Request r details: prompt: None, prompt_token_ids: {ids}, prompt_embeds shape: None.\n"
    received = (
        f"INFO {head} Received request r: params: SamplingParams(n=1, max_tokens=64), lora_request: None, "
        f"prompt_token_ids: {ids[:512]}.\n"
    )
    for lines in (details + received, received + details):
        trace = read(write("vllm.log", lines + answered("r", "[1, 2]")), spread_arrivals_s=0)
        assert (trace.input_tokens.tolist(), trace.max_output_tokens.tolist()) == ([600], [64])


#: What vLLM prints with --enable-log-requests --enable-log-outputs at DEBUG: vllm-project/vllm#34503 and #20707.
SERVER = """\
(APIServer pid=90458) INFO:     Started server process [90458]
(APIServer pid=90458) INFO:     Application startup complete.
(APIServer pid=90458) DEBUG 02-13 11:33:33 [logger.py:43] Request chatcmpl-a26 details: prompt: 'user\\nhi', \
prompt_token_ids: [151644, 872, 198, 6023], prompt_embeds shape: None.
(APIServer pid=90458) INFO 02-13 11:33:33 [logger.py:49] Received request chatcmpl-a26: params: SamplingParams(n=1, \
presence_penalty=0.0, temperature=0.7, stop=[], ignore_eos=False, max_tokens=100, min_tokens=0, logprobs=None, \
structured_outputs=None, extra_args=None), lora_request: None.
(APIServer pid=90458) INFO 02-13 11:33:33 [async_llm.py:382] Added request chatcmpl-a26-a8a65d16.
(APIServer pid=90458) INFO 02-13 11:33:35 [logger.py:78] Generated response chatcmpl-a26: output: 'Hello!', \
output_token_ids: [9707, 0, 151645], finish_reason: stop
(APIServer pid=90458) INFO:     10.80.23.18:51408 - "POST /v1/chat/completions HTTP/1.1" 200 OK
(APIServer pid=90458) INFO 02-13 11:33:39 [loggers.py:257] Engine 000: Avg prompt throughput: 0.8 tokens/s, Running: 0 \
reqs, Waiting: 0 reqs, GPU KV cache usage: 0.0%, Prefix cache hit rate: 0.0%
"""


def test_a_vllm_server_s_output_as_it_is(write):
    path = write("vllm.log", SERVER)
    assert detect_format(path) == "vllm"
    trace = read(path, spread_arrivals_s=0)
    assert (trace.input_tokens.tolist(), trace.output_tokens.tolist()) == ([4], [3])
    assert trace.max_output_tokens.tolist() == [100]
    plain = "".join(line for line in SERVER.splitlines(keepends=True) if "DEBUG" not in line)
    assert "VLLM_LOGGING_LEVEL=DEBUG" in refused(write("info.log", plain))


#: A page of LiteLLM's ``GET /spend/logs/v2``: BerriAI/litellm#36666.
SPEND = {
    "request_id": "chatcmpl-80246d73974ebd1d", "call_type": "acompletion", "api_key": "litellm_proxy_master_key",
    "spend": 0.0, "total_tokens": 24, "prompt_tokens": 7, "completion_tokens": 17,
    "startTime": "2026-08-06T14:30:00+00:00", "endTime": "2026-08-06T14:31:30+00:00",
    "completionStartTime": "2026-08-06T14:30:10+00:00", "model": "openai/Qwen3.6-35B-A3B-FP8", "team_id": "",
    "metadata": {"status": "success", "usage_object": {"prompt_tokens": 7, "completion_tokens": 17}}, "end_user": "",
    "cache_hit": "None", "cache_key": "Cache OFF", "request_tags": [], "session_id": "c7f", "status": "success",
}  # fmt: skip


def test_litellm_s_pages_are_rows_in_an_object(write):
    page = write("page.json", json.dumps({"data": [SPEND], "total": 1, "page": 1}))
    assert refused(page).endswith(
        "page.json:1: its rows stand under data: write them one a line, as `jq -c '.data[]'` does"
    )
    trace = read(write("rows.jsonl", [SPEND]))
    assert (trace.input_tokens.tolist(), trace.output_tokens.tolist()) == ([7], [17])
    assert "2026-08-06 14:30:00" in trace.notes[0]


@pytest.mark.parametrize(
    "line",
    [
        '(APIServer pid=1) INFO:     10.80.23.18:51408 - "POST /v1/chat/completions HTTP/1.1" 200 OK',
        '10.0.0.7 - - [01/Aug/2026:09:00:00 +0000] "POST /v1/chat/completions HTTP/1.1" 200 1532 "-" "OpenAI"',
        '[2026-08-01T09:00:00.250Z] "POST /v1/chat/completions HTTP/1.1" 200 - 1532 88 1520 1519 "10.0.0.7" "curl" '
        '"0d1c" "llm.example.com" "10.1.0.3:8000"',
        '{"start_time": "2026-08-01T09:00:00.250Z", "method": "POST", "path": "/v1/chat/completions", "response_code": '
        '200, "bytes_received": 1532, "bytes_sent": 88, "duration": 1520, "upstream_host": "10.1.0.3:8000"}',
    ],
    ids=["uvicorn", "web server", "envoy", "istio"],
)
def test_an_access_log_without_lengths_is_called_that(write, line):
    message = refused(write("access.log", f"{line}\n{line}\n"))
    assert "access.log:1: an access log without token counts: they cannot be guessed." in message
    assert "docs/traces.md#logs" in message
    assert "hisearch observe" in message


def test_envoy_ai_gateway_s_log_among_kubectl_s_lines(write):
    """Text before JSON, counts as text, "-" where there are none: what its access log format prints."""
    row = {
        "start_time": "2026-08-01T09:00:00.250Z", "method": "POST", "x-envoy-origin-path": "/v1/chat/completions",
        "response_code": 200, "duration": "1520", "upstream_host": "10.1.0.3:8000", "x-request-id": "0d1c",
        "gen_ai.request.model": "llama", "gen_ai.response.model": "llama", "gen_ai.provider.name": "openai",
        "gen_ai.usage.input_tokens": "812", "gen_ai.usage.output_tokens": "140", "session.id": "-",
    }  # fmt: skip
    health = row | {"method": "GET", "gen_ai.usage.input_tokens": "-", "gen_ai.usage.output_tokens": "-"}
    text = (
        'Defaulted container "envoy" out of: envoy, shutdown-manager\n' + f"{json.dumps(health)}\n{json.dumps(row)}\n"
    )
    path = write("gateway.log", text)
    assert detect_format(path) == "envoy"
    trace = read(path)
    assert (trace.input_tokens.tolist(), trace.output_tokens.tolist()) == ([812], [140])
    assert "2 rows left out" in " ".join(trace.notes)
