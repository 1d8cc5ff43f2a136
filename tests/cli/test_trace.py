"""``hisearch trace``."""

import json
from pathlib import Path

import pytest

import hisearch as package
from hisearch.api.deployments.workload import first_requests, load_trace
from hisearch.specs.documents.catalogue import Catalogue
from hisearch.traces.compiler import compile_trace
from hisearch.traces.generate import generate_trace
from tests.cli.conftest import Hisearch


def test_statistics(hisearch: Hisearch, workdir: Path) -> None:
    ran = hisearch("trace", "stats", "visits.yaml")
    assert ran.code == 0
    assert "120 requests" in ran.out
    assert "ideal hit rate" in ran.out
    arguments = ("--json", "--capacity-tokens", 1600, "--capacity-tokens", 16000)
    data = hisearch("trace", "stats", "visits.yaml", *arguments).json
    expected = package.trace_stats(load_trace("visits.yaml"), capacities_tokens=[1600, 16000])
    assert data == json.loads(json.dumps(expected.to_dict()))
    assert [point["capacity_tokens"] for point in data["lru"]] == [1600, 16000]


@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.gz", "t.parquet"])
def test_a_generated_trace_replays_as_its_workload(hisearch: Hisearch, workdir: Path, name: str) -> None:
    assert hisearch("trace", "generate", "visits.yaml", "-o", name).code == 0
    generated = generate_trace(Catalogue().get("Workload", "visits.yaml").spec.generator)
    assert load_trace(name).digest == compile_trace(generated, "visits").digest


def test_a_generated_trace_of_another_size_and_seed(hisearch: Hisearch, workdir: Path) -> None:
    for name, seed in (("a.jsonl", 0), ("b.jsonl", 1), ("c.jsonl", 0)):
        assert hisearch("trace", "generate", "visits.yaml", "-o", name, "--requests", 30, "--seed", seed).code == 0
    assert len(load_trace("a.jsonl")) == 30
    assert (workdir / "a.jsonl").read_bytes() == (workdir / "c.jsonl").read_bytes()
    assert (workdir / "a.jsonl").read_bytes() != (workdir / "b.jsonl").read_bytes()


def test_a_shipped_workload_that_begins_in_mid_conversation(hisearch: Hisearch, workdir: Path) -> None:
    assert hisearch("trace", "generate", "chat-multiturn", "-o", "t.parquet", "--requests", 2000).code == 0
    assert len(load_trace("t.parquet")) == 2000


def test_adapters_share_no_kv(hisearch: Hisearch, workdir: Path) -> None:
    """Twelve prompts that begin alike, of two adapters and the base model: each begins for each of them once."""
    row = '{{"id": "{k}", "arrival_s": {k}, "input_tokens": 160, "output_tokens": 2{more}}}\n'
    shared = ', "prefix": "system", "prefix_tokens": 160'
    for name, adapters in (("plain", ("", "", "")), ("own", ("", ', "adapter": "a"', ', "adapter": "b"'))):
        rows = [row.format(k=k, more=shared + adapters[k % 3]) for k in range(12)]
        (workdir / f"{name}.jsonl").write_text('{"format": "hisearch-trace", "version": 1}\n' + "".join(rows))
    plain, own = (hisearch("trace", "stats", f"{name}.jsonl", "--curve", "--json").json for name in ("plain", "own"))
    assert (plain["adapters"], plain["ideal_hit_tokens"], plain["unique_prompt_tokens"]) == (0, 11 * 160, 160)
    assert (own["adapters"], own["ideal_hit_tokens"], own["unique_prompt_tokens"]) == (2, 9 * 160, 3 * 160)
    for data in (plain, own):
        assert data["lru"][-1]["hit_tokens"] == data["curve"][-1]["hit_tokens"] == data["ideal_hit_tokens"]
    assert "adapters 2, which share no KV" in " ".join(hisearch("trace", "stats", "own.jsonl").out.split())


def test_import_converts_and_counts_broken_rows(hisearch: Hisearch, workdir: Path) -> None:
    rows = [{"timestamp": 1000 * i, "input_length": 600, "output_length": 5, "hash_ids": [0, i + 1]} for i in range(9)]
    rows[4]["input_length"] = -1
    (workdir / "m.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    refused = hisearch("trace", "import", "m.jsonl", "-o", "t.jsonl")
    assert refused.code == 1
    assert "m.jsonl:5" in refused.err
    assert not (workdir / "t.jsonl").exists()
    ran = hisearch("trace", "import", "m.jsonl", "-o", "t.jsonl", "--skip-bad", 1, "--limit", 6)
    assert ran.code == 0
    assert ran.out == "t.jsonl: 6 requests\n"
    assert "1 broken row left out" in ran.err
    assert package.trace_stats(load_trace("t.jsonl")).ideal_hit_tokens == 5 * 512


def test_what_was_written_as_json(hisearch: Hisearch, workdir: Path) -> None:
    (workdir / "m.jsonl").write_text(
        '{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}\n'
        '{"timestamp": 0, "input_length": -1, "output_length": 5, "hash_ids": [0, 1]}\n'
    )
    imported = hisearch("trace", "import", "m.jsonl", "-o", "t.jsonl", "--skip-bad", 1, "--json")
    assert imported.err == ""
    facts = imported.json
    assert (facts["path"], facts["requests"], facts["skipped_rows"]) == ("t.jsonl", 1, 1)
    assert isinstance(facts["warnings"], list)
    generated = hisearch("trace", "generate", "visits.yaml", "-o", "v.jsonl", "--json").json
    assert generated == {"path": "v.jsonl", "requests": 120, "skipped_rows": 0, "notes": [], "warnings": []}


TABLE = 'ts,"Prompt, tokens",answer,chat\n0.0,100,5,a\n1.5,200,7,b\n9.0,310,7,a\n'
MAPPING = 'arrival_s=ts,"input_tokens=Prompt, tokens",output_tokens=answer'


def test_columns_are_mapped_as_in_a_workload(hisearch: Hisearch, workdir: Path) -> None:
    (workdir / "own.csv").write_text(TABLE)
    (workdir / "own.yaml").write_text(
        "apiVersion: hisearch/v1\nkind: Workload\nmetadata: {name: own}\nspec:\n  file:\n    path: own.csv\n"
        "    columns: {arrival_s: ts, input_tokens: 'Prompt, tokens', output_tokens: answer, session: chat}\n"
    )
    mapping = ("--columns", MAPPING, "--columns", "session=chat")
    assert hisearch("trace", "import", "own.csv", "-o", "own.jsonl", *mapping).out == "own.jsonl: 3 requests\n"
    expected = load_trace("own.yaml")
    assert expected.arrays.input_tokens.tolist() == [100, 200, 310]
    assert load_trace("own.jsonl").digest == expected.digest
    assert hisearch("trace", "stats", "own.csv", *mapping, "--json").json["digest"] == expected.digest
    simulated = hisearch("simulate", "pair.yaml", "--trace", "own.csv", *mapping, "--json", "-q").json
    assert simulated["trace"]["digest"] == expected.digest


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        (None, 'it looks as if --columns \'arrival_s=ts,"input_tokens=Prompt, tokens",output_tokens=answer'),
        ("arrival_s", "expected FIELD=COLUMN"),
        ("arrival_s=ts,arrival_s=ts", "arrival_s is given twice"),
        ("when=ts", "expected fields among id, arrival_s"),
        ("input_tokens=answer,output_tokens=answer", "arrival_s has no column"),
        ("arrival_s=ts,input_tokens=prompt,output_tokens=answer", "no such column (for input_tokens)"),
    ],
)
def test_a_mapping_that_does_not_fit_is_refused(
    hisearch: Hisearch, workdir: Path, columns: str | None, expected: str
) -> None:
    (workdir / "own.csv").write_text(TABLE)
    ran = hisearch("trace", "import", "own.csv", "-o", "t.jsonl", *(("--columns", columns) if columns else ()))
    assert (ran.code, ran.out) == (1, "")
    assert expected in ran.err
    assert not (workdir / "t.jsonl").exists()


def test_how_a_file_was_read_is_said_wherever_it_is_used(hisearch: Hisearch, workdir: Path) -> None:
    (workdir / "own.csv").write_text(
        "start,prompt_tokens,completion_tokens\n" + "".join(f"{1785574800000 + 206 * k},50,4\n" for k in range(60))
    )
    mapping = "arrival_s=start,input_tokens=prompt_tokens,output_tokens=completion_tokens"
    assert f"it looks as if --columns {mapping}; run again" in hisearch("trace", "stats", "own.csv").err
    note = (
        "times: start holds milliseconds since 1970, by their size; 60 requests in 12.2 s, 4.85 requests/s, "
        "2026-08-01 09:00:00 to 2026-08-01 09:00:12 UTC"
    )
    assert note in hisearch("trace", "stats", "own.csv", "--columns", mapping).out
    assert hisearch("trace", "stats", "own.csv", "--columns", mapping, "--json").json["notes"] == [note]
    assert note in hisearch("trace", "import", "own.csv", "-o", "own.jsonl", "--columns", mapping).err
    assert note in hisearch("simulate", "pair.yaml", "--trace", "own.csv", "--columns", mapping).err
    columns = mapping.replace("=", ": ").replace(",", ", ")
    (workdir / "own.yaml").write_text(
        "apiVersion: hisearch/v1\nkind: Workload\nmetadata: {name: own}\nspec:\n  file:\n    path: own.csv\n"
        f"    columns: {{{columns}}}\n"
    )
    assert f"trace: {note}" in hisearch("doctor", "own.yaml").out
    assert hisearch("doctor", "own.yaml", "--json").json["notes"] == [note]
    assert "expected auto, s, ms, us, ns" in hisearch("trace", "stats", "own.csv", "--time-unit", "h").err


def test_columns_are_for_trace_files(hisearch: Hisearch, workdir: Path) -> None:
    ran = hisearch("trace", "stats", "visits.yaml", "--columns", "arrival_s=ts")
    assert ran.code == 1
    assert "columns is for trace files" in ran.err


def test_a_trace_needs_no_ending(hisearch: Hisearch, workdir: Path) -> None:
    assert hisearch("trace", "generate", "visits.yaml", "-o", "v.jsonl").code == 0
    (workdir / "v.jsonl").rename(workdir / "august")
    assert hisearch("trace", "stats", "august", "--json").json["requests"] == 120


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("stats", "."), ". is a folder; expected a document of kind Workload"),
        (("stats", "nowhere.jsonl"), "no file at nowhere.jsonl"),
        (("stats", "empty.jsonl"), "empty.jsonl"),
        (("stats", "visits.yaml", "--format", "foo"), "no trace format 'foo'"),
        (("import", "empty.jsonl", "-o", "t.jsonl"), "empty.jsonl"),
        (("import", "visits.yaml", "-o", "t.jsonl"), "visits.yaml"),
        (("generate", "visits.yaml", "-o", "t.txt"), "expected a name ending in"),
        (("generate", "visits.yaml", "-o", "no/such/folder/t.jsonl"), "t.jsonl"),
        (("generate", "mooncake-conversation", "-o", "t.jsonl"), "read from a file"),
    ],
)
def test_errors(hisearch: Hisearch, workdir: Path, arguments: tuple[str, ...], expected: str) -> None:
    (workdir / "empty.jsonl").write_text("")
    ran = hisearch("trace", *arguments)
    assert (ran.code, ran.out) == (1, "")
    assert expected in ran.err


def test_cutting_to_nothing_is_refused() -> None:
    trace = generate_trace(Catalogue().get("Workload", "chat-multiturn").spec.generator)
    assert len(first_requests(trace, 10)) == 10
    with pytest.raises(ValueError, match="at least 1 request"):
        first_requests(trace, 0)


FEW = ("--set", "spec.budget.simulations=4", "--set", "spec.confidence.draws=4")


@pytest.mark.parametrize("name", ["t.jsonl", pytest.param("t.jsonl.gz", marks=pytest.mark.slow), "t.parquet"])
def test_rows_left_out_at_import_are_said_by_all_that_read_the_trace(
    hisearch: Hisearch, workdir: Path, name: str
) -> None:
    rows = ["arrival_s,input_tokens,output_tokens", *(f"{n},200,20" for n in range(40)), "40,0,20", "41,200,x"]
    (workdir / "logs.csv").write_text("\n".join(rows) + "\n")
    note = "logs.csv: 2 broken rows left out: lines 42 and 43"
    imported = hisearch("trace", "import", "logs.csv", "-o", name, "--skip-bad", 2)
    assert imported.code == 0
    assert "2 broken rows left out: lines 42 and 43" in imported.out + imported.err
    stats = hisearch("trace", "stats", name)
    assert note in stats.out
    assert any(note in text for text in hisearch("trace", "stats", name, "--json").json["notes"])
    simulated = hisearch("simulate", "pair.yaml", "--trace", name)
    assert note in simulated.out + simulated.err
    ran = hisearch("run", "small.yaml", "--out", "r", "--set", f"spec.workload.trace={name}", *FEW)
    assert ran.code in (0, 99)
    assert note in ran.err
    assert any(note in text for text in json.loads((workdir / "r" / "provenance.json").read_text())["trace"]["notes"])
    assert hisearch("trace", "import", name, "-o", "again.jsonl").code == 0
    assert hisearch("trace", "merge", "again.jsonl", name, "-o", "both.jsonl").code == 0
    merged = hisearch("trace", "stats", "both.jsonl")
    assert merged.out.count(note) == 1
    assert load_trace(name).skipped_rows == 2


def test_a_header_with_notes_of_another_kind_is_refused(hisearch: Hisearch, workdir: Path) -> None:
    row = {"input_tokens": 5, "output_tokens": 2, "arrival_s": 0}
    for notes in ("text", [1], {"a": 1}):
        header = {"format": "hisearch-trace", "version": 1, "import_notes": notes}
        (workdir / "t.jsonl").write_text(json.dumps(header) + "\n" + json.dumps(row) + "\n")
        assert "import_notes: expected a list of texts" in hisearch("trace", "stats", "t.jsonl").err
    header = {"format": "hisearch-trace", "version": 1, "import_notes": ["a\x1b[31m\nb"]}
    (workdir / "t.jsonl").write_text(json.dumps(header) + "\n" + json.dumps(row) + "\n")
    assert "\x1b" not in hisearch("trace", "stats", "t.jsonl").out
