"""Case files, random cases, and the files that recordings are written to. No engine is needed."""

from __future__ import annotations

import gzip
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hisearch.record.cases import (
    Case,
    CaseError,
    EngineError,
    finished_case,
    random_cases,
    read_cases,
    record_cases,
    step_latency_s,
    write_recording,
)
from hisearch.record.vllm import BLOCK_KEY, SETTINGS
from hisearch.record.vllm_random import random_case

ROOT = Path(__file__).parents[2]
SMALL = "{max_num_seqs: 4, max_num_batched_tokens: 64, num_gpu_blocks_override: 20, block_size: 16}"
ROW = "{id: a, arrival_s: 0.0, input_tokens: 40, output_tokens: 8}"


def read(tmp_path: Path, text: str) -> list[Case]:
    path = tmp_path / "cases.yaml"
    path.write_text(text)
    return read_cases(path, SETTINGS, BLOCK_KEY)


def test_a_file_of_cases(tmp_path: Path) -> None:
    cases = read(
        tmp_path,
        f"- {{name: one, settings: {SMALL}, requests: [{ROW}]}}\n"
        f"- {{settings: {SMALL}, workload: {{requests: 3, seed: 1}}}}\n",
    )
    assert [case.name for case in cases] == ["one", "cases-1"]
    assert cases[0].settings == {"max_num_seqs": 4, "max_tokens": 64, "num_blocks": 20, "block_size": 16}
    assert cases[0].requests == [
        {"id": "a", "arrival_s": 0.0, "input_tokens": 40, "output_tokens": 8, "block_ids": [0, 1, 2]}
    ]
    assert len(cases[1].requests) == 3


def test_a_recording_is_a_case(tmp_path: Path) -> None:
    config = {"max_num_seqs": 4, "max_tokens": 64, "num_blocks": 20, "block_size": 16, "prefix": False}
    rows = [{"id": 7, "arrival_s": 1, "input_tokens": 30, "output_tokens": 2, "block_ids": [5, 9], "user": "x"}]
    path = tmp_path / "some.json.gz"
    write_recording(path, {"config": config, "requests": rows, "steps": []})
    (case,) = read_cases(path, SETTINGS, BLOCK_KEY)
    del rows[0]["user"]
    assert case == Case("some", config, rows)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"{{settings: {SMALL}, request: []}}", "request: unknown key"),
        (f"{{settings: {SMALL}}}", "expected requests"),
        (f"{{settings: {SMALL}, requests: []}}", "expected a list of requests"),
        (f"{{settings: {SMALL}, requests: [{ROW}], workload: {{}}}}", "either requests or workload"),
        (f"{{settings: {SMALL}, requests: [{ROW}, {ROW}]}}", "an id is used twice"),
        ("{settings: {max_num_seqs: 4}, workload: {}}", "max_num_batched_tokens: missing; expected an integer"),
        (f"{{settings: {SMALL[:-1]}, max_num_seq: 4}}, workload: {{}}}}", "settings: max_num_seq: unknown setting"),
        (f"{{settings: {SMALL[:-1]}, num_blocks: 4}}, workload: {{}}}}", "num_blocks: given twice"),
        (f"{{settings: {SMALL[:-1]}, policy: lifo}}, workload: {{}}}}", "expected fcfs or priority, found 'lifo'"),
        (f"{{settings: {SMALL[:-1]}, async_scheduling: 1}}, workload: {{}}}}", "expected true or false, found 1"),
        (f"{{settings: {SMALL[:-1]}, max_model_len: 0}}, workload: {{}}}}", "max_model_len: expected"),
        (f"{{settings: {SMALL}, workload: {{rate: 1}}}}", "workload: rate: unknown key"),
        (f"{{settings: {SMALL}, workload: {{turns: 2.0}}}}", "turns: expected a share from 0 to 1"),
        (f"{{settings: {SMALL}, workload: {{input_tokens: [9, 3]}}}}", "expected 1 <= least <= most"),
        (f"{{settings: {SMALL}, requests: [{{id: a}}]}}", "requests[0]: arrival_s: missing"),
        (f"{{settings: {SMALL}, requests: [{ROW[:-1]}, max_output_tokens: 3}}]}}", "expected output_tokens (8)"),
        ("- [", "cannot be read"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(CaseError) as error:
        read(tmp_path, text)
    assert message in str(error.value)
    assert str(tmp_path / "cases.yaml") in str(error.value)


def test_a_seed_is_a_case() -> None:
    def cases(count: int, seed: int) -> list[Case]:
        return list(random_cases(count, seed, random_case))

    first = cases(6, 40)
    assert first == cases(6, 40)
    assert first[4] == cases(1, 44)[0]
    assert [case.name for case in first[:2]] == ["random-00000040", "random-00000041"]
    assert len({json.dumps(case.settings) for case in first}) == 6


def test_random_cases_reach_every_setting() -> None:
    cases = list(random_cases(150, 1, random_case))
    for key in ("async_scheduling", "prefix", "chunked_prefill", "scheduler_reserve_full_isl"):
        assert {case.settings[key] for case in cases} == {True, False}
    assert {case.settings["policy"] for case in cases} == {"fcfs", "priority"}
    assert any(case.settings["watermark"] for case in cases)
    assert any(case.settings["long_prefill_token_threshold"] for case in cases)
    rows = [row for case in cases for row in case.requests]
    assert any(row.get("max_output_tokens", 0) > row["output_tokens"] for row in rows)
    assert any(row.get("max_output_tokens", 0) == row["output_tokens"] for row in rows)
    assert all(20 <= len(case.requests) <= 120 for case in cases)
    for case in cases:
        pool = (case.settings["num_blocks"] - 1) * case.settings["block_size"]
        assert max(row["input_tokens"] + row["output_tokens"] for row in case.requests) <= pool
        assert case.settings["max_tokens"] >= case.settings["max_num_seqs"]


def small_case(name: str) -> Case:
    row = {"id": name, "arrival_s": 0.0, "input_tokens": 3, "output_tokens": 1}
    return finished_case(name, {"block_size": 2}, [row], 2, "")


def test_recordings_that_exist_are_kept_and_failures_do_not_end_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "b.json.gz").write_bytes(b"as it was")

    def record(case: Case) -> dict[str, Any]:
        if case.name == "a":
            raise RuntimeError("no batch")
        return {"steps": [], "requests": case.requests}

    assert record_cases([small_case(name) for name in "abc"], tmp_path, record) == ["a"]
    assert (tmp_path / "b.json.gz").read_bytes() == b"as it was"
    assert json.loads(gzip.decompress((tmp_path / "c.json.gz").read_bytes()))["requests"][0]["id"] == "c"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.json.gz", "c.json.gz"]
    assert "a: RuntimeError: no batch" in capsys.readouterr().err


def test_an_engine_that_is_not_there_ends_it(tmp_path: Path) -> None:
    def record(case: Case) -> dict[str, Any]:
        raise EngineError("not installed")

    with pytest.raises(EngineError):
        record_cases([small_case("a")], tmp_path, record)
    assert list(tmp_path.iterdir()) == []


def test_the_law() -> None:
    assert step_latency_s([]) == 0.005
    assert step_latency_s([("a", 10, 4), ("b", 3, 1)]) == 0.005 + 2e-5 * 5 + 1e-9 * (4 * 12.5 + 4.0)


def test_texts_of_draws_are_shared_as_drawn() -> None:
    for case in random_cases(5, 3, random_case):
        size = case.settings["block_size"]
        for row in case.requests:
            assert len(row["block_ids"]) == (row["input_tokens"] + row["output_tokens"]) // size
            assert "_tokens" not in row


def test_only_the_standard_library_and_yaml_are_imported() -> None:
    """Engines' environments have none of the project's dependencies."""
    code = (
        "import sys; sys.modules['numba'] = sys.modules['pydantic'] = sys.modules['pandas'] = None; "
        "import hisearch.record.__main__, hisearch.record.vllm; "
        "print(sorted(name for name in sys.modules if name.startswith('hisearch.') and '.record' not in name), "
        "'numpy' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert result.stdout.strip() == "[] False"


def test_draws_need_no_global_state() -> None:
    random.seed(1)
    first = list(random_cases(1, 5, random_case))
    random.seed(2)
    assert first == list(random_cases(1, 5, random_case))
