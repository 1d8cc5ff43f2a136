"""The recorder of SGLang: tokens, clock, threads, settings, refusals; and an engine, where one is named."""

from __future__ import annotations

import gzip
import json
import os
import random
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hisearch.record import sglang
from hisearch.record.__main__ import main
from hisearch.record.cases import CaseError, EngineError, check_settings
from hisearch.record.sglang.copies import Device
from hisearch.record.sglang.hicache_0_5_23 import next_deadline
from hisearch.record.sglang.random_cases import draw_case
from hisearch.record.sglang.run import check
from hisearch.record.sglang.scheduler import OrderedSet
from hisearch.record.sglang.states import random_state_case, slots_per_request, strategy_of
from hisearch.record.sglang.timeline import Finished, StuckError, Timeline, step_latency_s
from hisearch.record.sglang.tokens import token_ids
from hisearch.record.sglang.virtual_threads import VirtualThreads
from hisearch.record.sglang.windows import random_window_case

SMALL = {
    "page_size": 16, "chunked_prefill_size": 256, "max_prefill_tokens": 1024, "max_running_requests": 8,
    "max_total_tokens": 2000, "block_ids_size": 16,
}  # fmt: skip


def test_requests_share_the_tokens_of_their_common_blocks_and_no_others() -> None:
    rows = [
        {"id": "a", "input_tokens": 10, "output_tokens": 3, "block_ids": [7, 8, 9]},
        {"id": "b", "input_tokens": 10, "output_tokens": 3, "block_ids": [7, 8, 5]},
    ]
    tokens, used = token_ids(rows, 4)
    assert tokens["a"][:8] == tokens["b"][:8]
    assert not set(tokens["a"][8:]) & set(tokens["b"][8:])
    assert len(tokens["a"]) == 13
    assert max(max(own) for own in tokens.values()) < used


def test_the_clock_jumps_to_arrivals_and_ends() -> None:
    timeline = Timeline([(1.5, "a"), (2.0, "b")], overlap=False, spins=True)
    timeline.idle_pass()
    timeline.begin_pass(waiting=False, live=False)
    assert timeline.clock == 1.5
    assert timeline.due() == ["a"]
    end = timeline.launch("prefill", [("a", 0, 100)], (10, 0), 0.7)
    assert end == 1.5 + step_latency_s([("a", 0, 100)])
    timeline.result(end)
    timeline.idle_pass()
    timeline.begin_pass(waiting=False, live=False)
    assert timeline.due() == ["b"]
    timeline.idle_pass()
    with pytest.raises(Finished):
        timeline.begin_pass(waiting=False, live=False)


def test_requests_that_nothing_will_admit_are_reported() -> None:
    timeline = Timeline([(0.0, "a")], overlap=False, spins=True)
    assert timeline.due() == ["a"]

    def spin() -> None:
        for _ in range(5000):
            timeline.idle_pass()
            timeline.begin_pass(waiting=True, live=True)

    with pytest.raises(StuckError, match="admits none"):
        spin()


def test_copies_run_one_after_another() -> None:
    timeline = Timeline([], overlap=False, spins=True)
    device = Device(timeline)
    stream = device.Stream()
    with device.stream(stream):
        device.copy(100, 0.5, 0.01)
        first = device.Event()
        first.record()
        device.copy(100, 0.5, 0.01)
    assert (first.time, stream.free_at) == (1.5, 3.0)
    assert not first.query()
    first.synchronize()
    assert timeline.clock == 1.5
    assert first.query()


def test_virtual_threads_wait_in_virtual_time() -> None:
    clock = [0.0]
    threads = VirtualThreads(lambda: clock[0])
    queue, seen = threads.queue_class()(), []

    def work() -> None:
        while True:
            item = queue.get(timeout=1)
            threads.sleep(2.0)
            seen.append((item, threads.time()))

    threads.thread(target=work).start()
    queue.put("a")
    queue.put("b")
    clock[0] = 3.0
    threads.advance()
    assert seen == [("a", 2.0)]
    assert threads.next_time() == 4.0
    clock[0] = 10.0
    threads.advance()
    assert seen == [("a", 2.0), ("b", 4.0)]
    threads.close()


def test_an_idle_scheduler_wakes_behind_the_next_deadline_of_a_prefetch() -> None:
    timeline = Timeline([], overlap=False, spins=True)
    timeline.clock = 2.0
    waits = {name: _wait(began_s) for name, began_s in (("past", 0.5), ("next", 1.5), ("later", 1.8), ("none", None))}
    tree = SimpleNamespace(_storage_prefetch_wait=waits, ongoing_prefetch=[*waits, "not polled"])
    assert next_deadline(tree, timeline) == 2.5 + 1e-6
    tree.ongoing_prefetch = ["past", "none"]
    assert next_deadline(tree, timeline) is None


def _wait(began_s: float | None) -> SimpleNamespace:
    timer = SimpleNamespace(started_at=began_s, running=began_s is not None)
    return SimpleNamespace(timer=timer, timeout_s=1.0)


def test_preempted_requests_are_queued_in_the_order_of_their_choice() -> None:
    chosen = OrderedSet([15, 13, 7])
    chosen.add(2)
    assert list(chosen) == [15, 13, 7, 2]
    assert 13 in chosen


def test_an_unknown_setting_is_named() -> None:
    with pytest.raises(CaseError, match="page_sise: unknown setting; expected one of"):
        check_settings("case.yaml: x: settings", SMALL | {"page_sise": 1}, sglang.SETTINGS)
    assert check_settings("case", SMALL | {"chunked_prefill_size": -1}, sglang.SETTINGS)["chunked_prefill_size"] == -1


def test_what_can_not_be_recorded_is_refused() -> None:
    row = {"id": "r1", "arrival_s": 0.0, "input_tokens": 1990, "output_tokens": 50, "block_ids": []}
    with pytest.raises(EngineError, match="r1: 1990 tokens in and 50 out do not fit the pool of 2000"):
        check("0.5.9", SMALL, [row])
    with pytest.raises(EngineError, match="hicache: ratio: unknown key; expected one of hicache_ratio"):
        check("0.5.9", SMALL | {"hicache": {"ratio": 2.0}}, [])
    with pytest.raises(EngineError, match="slru"):
        check("0.5.9", SMALL | {"radix_eviction_policy": "slru"}, [])


WINDOWS = SMALL | {"sliding_window_size": 127, "swa_max_total_num_tokens": 1000}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"swa_max_total_num_tokens": None}, "swa_max_total_num_tokens: missing; expected both of sliding_window_size"),
        ({"sliding_window_size": None}, "sliding_window_size: missing"),
        # Not more than a window and a page: no request would ever be admitted.
        ({"swa_max_total_num_tokens": 143}, "swa_max_total_num_tokens: 128; the engine needs more than .* 143"),
        ({"swa_max_total_num_tokens": 2016}, "swa_max_total_num_tokens: 2016; the engine has no more than .* 2000"),
        ({"hicache": {"hicache_ratio": 2.0}}, "sliding_window_size beside hicache is not recorded"),
        ({"speculation": {"method": "eagle", "draft_tokens": 1, "accepted": [0.5], "seed": 0}}, "beside speculation"),
    ],
)
def test_windows_that_can_not_be_recorded_are_refused(change: dict[str, Any], expected: str) -> None:
    for pool in (144, 1000, 2000):
        check("0.5.23", WINDOWS | {"swa_max_total_num_tokens": pool}, [])
    with pytest.raises(EngineError, match=expected):
        check("0.5.23", WINDOWS | change, [])


def test_windows_of_other_versions_are_refused() -> None:
    with pytest.raises(EngineError, match="sliding_window_size: recorded of sglang"):
        check("0.5.9", WINDOWS, [])


STATES = SMALL | {"max_running_requests": 4, "max_mamba_cache_size": 16, "mamba_radix_cache_strategy": "extra_buffer"}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"max_mamba_cache_size": None}, "max_mamba_cache_size: missing; expected beside mamba_radix_cache_strategy"),
        ({"max_mamba_cache_size": 15}, "max_running_requests: 4; the engine runs no more than 3 .* 15 states, 4 a"),
        ({"disable_overlap_schedule": False}, "max_running_requests: 4; .* 16 states, 5 a request"),
        ({"mamba_radix_cache_strategy": "no_buffer"}, "page_size: 16; the engine has no_buffer with pages of 1 alone"),
        (
            {"mamba_radix_cache_strategy": "no_buffer", "page_size": 1, "disable_overlap_schedule": False},
            "no_buffer without overlap alone",
        ),
        ({"mamba_radix_cache_strategy": "extra_buffer_lazy"}, "extra_buffer_lazy with overlap alone"),
        ({"mamba_track_interval": 100}, "mamba_track_interval: 100; the engine wants a multiple of page_size, 16"),
        ({"mamba_chunk_size": 40}, "mamba_chunk_size: 40; the engine wants it to divide page_size, 16"),
        ({"mamba_max_states_per_path": 0}, "mamba_max_states_per_path: 0; the engine wants -1"),
        ({"hicache": {"hicache_ratio": 2.0}}, "max_mamba_cache_size beside hicache is not recorded"),
        ({"sliding_window_size": 31, "swa_max_total_num_tokens": 200}, "beside sliding_window_size is not recorded"),
    ],
)
def test_states_that_can_not_be_recorded_are_refused(change: dict[str, Any], expected: str) -> None:
    check("0.5.23", STATES, [])
    check("0.5.23", STATES | {"disable_radix_cache": True, "max_mamba_cache_size": 4, "mamba_track_interval": 100}, [])
    with pytest.raises(EngineError, match=expected):
        check("0.5.23", STATES | change, [])
    with pytest.raises(EngineError, match="max_mamba_cache_size: recorded of sglang"):
        check("0.5.9", STATES, [])


@pytest.mark.parametrize(
    ("overlap", "page", "expected", "slots"),
    [(True, 1, "extra_buffer", 5), (False, 16, "extra_buffer", 4), (False, 1, "no_buffer", 3)],
)
def test_the_strategy_auto_is_that_of_the_engine(overlap: bool, page: int, expected: str, slots: int) -> None:
    config = {"page_size": page, "disable_overlap_schedule": not overlap}
    assert (strategy_of(config), slots_per_request(config)) == (expected, slots)
    assert slots_per_request(config | {"disable_radix_cache": True}) == 1


@pytest.mark.parametrize("installed", ["0.5.8", "0.5.12", "0.6.0"])
def test_other_versions_are_refused(installed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sglang, "installed_version", lambda _: installed)
    with pytest.raises(EngineError, match=f"sglang {installed}: only 0.5.9 and 0.5.23"):
        sglang.version()


def test_a_missing_engine_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sglang", "--random", "1", "--out", str(tmp_path)]) == 2
    assert "sglang is not installed" in capsys.readouterr().err


def test_random_cases_are_repeatable_and_can_be_recorded() -> None:
    for seed in range(40):
        config, rows, block = draw_case(random.Random(seed), "0.5.9")
        assert (config, rows, block) == draw_case(random.Random(seed), "0.5.9")
        assert check_settings("case", config, sglang.SETTINGS) == config
        assert 20 <= len(rows) <= 121
        check("0.5.9", config, rows)


def test_random_windows_are_repeatable_and_can_be_recorded() -> None:
    windows = set()
    for seed in range(60):
        config, rows, block = random_window_case(random.Random(seed), "0.5.23")
        assert (config, rows, block) == random_window_case(random.Random(seed), "0.5.23")
        assert check_settings("case", config, sglang.SETTINGS) == config
        check("0.5.23", config, rows)
        longest = max(row["input_tokens"] + row["output_tokens"] for row in rows)
        windows.add((config["sliding_window_size"] < config["page_size"], config["sliding_window_size"] > longest))
    # Below a page, longer than any request, and between.
    assert windows == {(True, False), (False, True), (False, False)}


def test_random_states_are_repeatable_and_can_be_recorded() -> None:
    strategies = set()
    for seed in range(60):
        config, rows, block = random_state_case(random.Random(seed), "0.5.23")
        assert (config, rows, block) == random_state_case(random.Random(seed), "0.5.23")
        assert check_settings("case", config, sglang.SETTINGS).items() <= config.items()
        check("0.5.23", config, rows)
        strategies.add("off" if config["disable_radix_cache"] else strategy_of(config))
    assert strategies == {"off", "no_buffer", "extra_buffer", "extra_buffer_lazy"}


@pytest.mark.slow
@pytest.mark.parametrize("engine", sglang.VERSIONS)
def test_a_real_engine_is_recorded(engine: str, tmp_path: Path) -> None:
    name = f"HISEARCH_SGLANG_PYTHON_{engine.replace('.', '_')}"
    python = os.environ.get(name)
    if not python:
        pytest.skip(f"{name} names no interpreter with SGLang {engine}: nothing is recorded")
    command = [python, "-m", "hisearch.record", "sglang", "--random", "2", "--seed", "3", "--out", str(tmp_path)]
    subprocess.run(command, check=True, cwd=Path(__file__).parents[2])
    recordings = [json.loads(gzip.decompress(path.read_bytes())) for path in sorted(tmp_path.glob("*.json.gz"))]
    assert len(recordings) == 2
    for recording in recordings:
        assert recording["engine"].startswith(f"sglang {engine} ")
        assert len(recording["finish_s"]) == len(recording["requests"])
