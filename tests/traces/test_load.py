"""Entry points and the disk cache."""

from __future__ import annotations

import json
import logging

import numpy as np
import pytest
from test_generate import BASE
from test_importers import MOONCAKE

from hisearch.specs.workloads.workload import WorkloadSpec
from hisearch.traces import cache, load
from hisearch.traces.reading.errors import TraceError


def entries():
    return sorted(cache.cache_folder().iterdir())


def same(first, second) -> bool:
    arrays = all(np.array_equal(a, b, equal_nan=True) for a, b in zip(first.arrays, second.arrays, strict=True))
    return arrays and (first.digest, first.request_ids, first.warnings, first.skipped_rows) == (
        second.digest, second.request_ids, second.warnings, second.skipped_rows,
    )  # fmt: skip


def test_second_load_comes_from_the_cache(write, monkeypatch):
    path = write("t.jsonl", [*MOONCAKE[:2], {}, MOONCAKE[2]])
    first = load.load_trace_file(path, skip_bad=1)
    assert first.name == "t"
    assert first.skipped_rows == 1
    assert len(entries()) == 1

    def forbidden(*_args, **_options):
        raise AssertionError("read again")

    monkeypatch.setattr(load, "read_trace", forbidden)
    second = load.load_trace_file(path, skip_bad=1, name="other")
    assert second.name == "other"
    assert same(first, second)
    assert not any(array.flags.writeable for array in second.arrays)
    short = load.load_trace_file(path, skip_bad=1, limit=2)
    assert list(short.request_ids) == first.request_ids[:2]
    with pytest.raises(AssertionError, match="read again"):
        load.load_trace_file(path, skip_bad=2)
    with pytest.raises(AssertionError, match="read again"):
        load.load_trace_file(path, skip_bad=1, seed=1)
    write("t.jsonl", MOONCAKE[:2])
    with pytest.raises(AssertionError, match="read again"):
        load.load_trace_file(path, skip_bad=1)


def test_generated_workloads_are_cached_too(monkeypatch, tmp_path):
    spec = WorkloadSpec(generator=BASE)
    first = load.load_workload(spec, tmp_path, name="g")
    monkeypatch.setattr(load, "generate_trace", lambda *_args, **_options: pytest.fail("generated again"))
    assert same(first, load.load_workload(spec, tmp_path, name="g"))
    assert len(load.load_workload(spec, tmp_path, limit=10)) == 10


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty", "other"])
def test_damaged_entry_is_reported_and_built_again(write, damage, caplog):
    path = write("t.jsonl", MOONCAKE)
    first = load.load_trace_file(path)
    (entry,) = entries()
    content = bytearray(entry.read_bytes())
    if damage == "flipped":
        with np.load(entry) as stored:
            arrays = dict(stored)
        arrays["input_tokens"] = arrays["input_tokens"] + 1
        np.savez(entry, **arrays)
    else:
        entry.write_bytes({"truncated": content[: len(content) // 2], "empty": b"", "other": b"x" * 99}[damage])
    with caplog.at_level(logging.WARNING):
        again = load.load_trace_file(path)
    assert "damaged and will be built again" in caplog.text
    assert same(first, again)
    caplog.clear()
    load.load_trace_file(path)
    assert caplog.text == ""
    assert entries() == [entry]


def test_unwritable_cache_is_no_error(write, monkeypatch, tmp_path, caplog):
    blocker = tmp_path / "file"
    blocker.write_text("")
    monkeypatch.setattr(cache, "cache_folder", lambda: blocker / "traces")
    with caplog.at_level(logging.WARNING):
        assert len(load.load_trace_file(write("t.jsonl", MOONCAKE))) == 3
    assert "could not be kept" in caplog.text


def test_cache_folder(monkeypatch, tmp_path):
    monkeypatch.undo()
    monkeypatch.setenv("HISEARCH_CACHE_DIR", str(tmp_path / "own"))
    assert cache.cache_folder() == tmp_path / "own" / "traces"
    monkeypatch.delenv("HISEARCH_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache.cache_folder() == tmp_path / "xdg" / "hisearch" / "traces"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache.cache_folder() == tmp_path / ".cache" / "hisearch" / "traces"


def test_path_is_resolved_from_the_spec_folder_then_the_working_directory(tmp_path, monkeypatch):
    working, spec_folder = tmp_path / "here", tmp_path / "beside"
    for folder, row in ((working, MOONCAKE[0]), (spec_folder, MOONCAKE[2])):
        folder.mkdir()
        (folder / "both.jsonl").write_text(json.dumps(row))
    (working / "one.jsonl").write_text(json.dumps(MOONCAKE[1]))
    monkeypatch.chdir(working)

    def first_prompt(name):
        return load.load_workload(WorkloadSpec(file={"path": name}), spec_folder).arrays.input_tokens[0]

    assert first_prompt("both.jsonl") == 500
    assert first_prompt("one.jsonl") == 1100
    assert first_prompt(str(working / "both.jsonl")) == 600
    with pytest.raises(TraceError, match=r"no trace file none\.jsonl in .*beside or .*here") as caught:
        first_prompt("none.jsonl")
    assert caught.value.key == "path"


def test_replay_that_the_file_cannot_give(write):
    path = write("t.csv", "num_prefill_tokens,num_decode_tokens\n10,20\n35,5\n")
    with pytest.raises(TraceError, match=r"t\.csv: follow_ups: open_loop needs the arrival time"):
        load.load_trace_file(path, follow_ups="open_loop")
