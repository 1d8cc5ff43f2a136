from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from hisearch.specs.documents.document import parse_document
from hisearch.specs.errors import Problem, SpecError
from hisearch.specs.source import read_source, text_source
from tests.specs.files import STUDY, refusal, slo_text, write


def _study(project: Path, old: str, new: str) -> str:
    write(project / "studies/mine.yaml", STUDY.replace(old, new))
    return refusal("studies/mine.yaml")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "slo: interactive-chat",
            "slo: foo",
            "studies/mine.yaml:9: spec.slo: no SLO named 'foo'; known: agent-society, batch, ",
        ),
        (
            "slo: interactive-chat",
            "slos: interactive-chat",
            "studies/mine.yaml:9: spec.slos: unknown key; did you mean 'slo'?",
        ),
        ("slo: interactive-chat\n", "\n", "studies/mine.yaml:5: spec.slo: required, and missing"),
        (
            "slo: interactive-chat",
            "slo: 3",
            "studies/mine.yaml:9: spec.slo: expected a name, a path or a section; got 3",
        ),
        (
            "slo: interactive-chat",
            "slo: {terms: []}",
            "studies/mine.yaml:9: spec.slo.terms: needs 1 or more entries, got 0",
        ),
        (
            "slo: interactive-chat",
            "slo:\n        terms:\n          - metric: ttft\n            percentile: 0\n            at_most_s: .inf\n",
            "studies/mine.yaml:11: spec.slo.terms.0.metric: expected 'ttft_s', 'ttfo_s', 'tpot_s' or 'e2e_s'; got text "
            "'ttft'\n"
            "studies/mine.yaml:12: spec.slo.terms.0.percentile: must be greater than 0, got 0\n"
            "studies/mine.yaml:13: spec.slo.terms.0.at_most_s: expected a finite number, got inf",
        ),
        (
            "trace: ./trace.csv",
            "trace: ./none.csv",
            "studies/mine.yaml:8: spec.workload.trace: no file at studies/none.csv",
        ),
        (
            "trace: ./trace.csv",
            "trace: none",
            "studies/mine.yaml:8: spec.workload.trace: no Workload named 'none'; known: ",
        ),
        ("model: qwen3-8b", "model: qwen3-8", "spec.model: no Model named 'qwen3-8'; did you mean 'qwen3-8b'? known: "),
        ("space: quickstart", "space: quickstart\n      seed: '0'", "spec.seed: expected an integer, got text '0'"),
        ("space: quickstart", "space: quickstart\n      seed: true", "spec.seed: expected an integer, got true"),
        (
            "space: quickstart",
            "space: quickstart\n      budget: 5",
            "studies/mine.yaml:11: spec.budget: expected a section, got 5",
        ),
        (
            "space: quickstart",
            "space: quickstart\n      objectives: [goodput, goodput]",
            "studies/mine.yaml:5: spec: an objective is given twice",
        ),
        (
            "kind: Study",
            "kind: Studdy",
            "studies/mine.yaml:2: kind: no kind 'Studdy'; did you mean 'Study'? known: Study",
        ),
        ("kind: Study", "kind: SLO", "studies/mine.yaml:2: kind: expected a document of kind Study, got SLO"),
        ("kind: Study\n", "\n", "studies/mine.yaml:1: kind: required; known: Study, SLO"),
        (
            "hisearch/v1",
            "hisearch/v2",
            "studies/mine.yaml:1: apiVersion: expected 'hisearch/v1'; got text 'hisearch/v2'",
        ),
        ("name: mine", "name: My study", "studies/mine.yaml:4: metadata.name: text 'My study' does not match"),
    ],
)
def test_a_mistake_is_named_with_file_line_and_key(project: Path, old: str, new: str, message: str) -> None:
    assert message in _study(project, old, new)


def test_all_mistakes_of_a_document_are_reported_at_once_in_the_order_of_lines(project: Path) -> None:
    write(project / "studies/mine.yaml", STUDY.replace("trace:", "tracee:").replace("model: qwen3-8b", "model: 1"))
    lines = refusal("studies/mine.yaml").splitlines()
    assert [line.split(": ")[:2] for line in lines] == [
        ["studies/mine.yaml:6", "spec.model"],
        ["studies/mine.yaml:8", "spec.workload.tracee"],
    ]


def test_only_the_branch_that_was_meant_is_complained_about(project: Path) -> None:
    message = _study(project, "slo: interactive-chat", "slo: {term: []}")
    assert message.splitlines() == [
        "studies/mine.yaml:9: spec.slo.term: unknown key; did you mean 'terms'? known: terms, "
        "max_rejected_fraction, models",
    ]


def test_a_mistake_in_a_document_that_is_named_is_reported_with_its_file(project: Path) -> None:
    write(project / "slos/strict.yaml", slo_text("strict").replace("99", "101"))
    assert (
        refusal("mine", "spec.slo=strict")
        == "slos/strict.yaml:6: spec.terms.0.percentile: must be at most 100, got 101"
    )


def test_an_unknown_key_of_a_mapping_with_known_keys_lists_them(project: Path) -> None:
    h100 = (read_source(Path(__file__).parents[2] / "profiles/accelerators/h100-sxm.yaml")).path.read_text()
    write(project / "profiles/accelerators/mine.yaml", h100.replace("h100-sxm", "mine").replace("bf16:", "bf15:"))
    space = "{execution: {accelerators: [mine], engines: [vllm]}}"
    message = refusal("mine", f"spec.space={space}")
    assert "profiles/accelerators/mine.yaml:14: spec.peak_flops.bf15: expected 'fp32', 'bf16'" in message


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", ":1: expected a document with apiVersion: hisearch/v1, kind, metadata and spec; got an empty file"),
        (b"- 1\n", ":1: expected a document with apiVersion: hisearch/v1, kind, metadata and spec; got a list"),
        (b"a: 1\nb: \xff\n", ":2: not UTF-8 text"),
    ],
)
def test_what_is_no_document_is_refused(project: Path, content: bytes, message: str) -> None:
    (project / "bad.yaml").write_bytes(content)
    assert refusal("bad.yaml") == f"bad.yaml{message}"
    assert message in refusal("bad.yaml", "spec.seed=1")


def test_a_directory_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="cannot be read: Is a directory"):
        read_source(tmp_path)


def test_an_error_carries_its_parts_and_survives_pickling() -> None:
    error = SpecError.at("wrong", path=Path("/x/a.yaml"), line=3, key="spec.a")
    again = pickle.loads(pickle.dumps(error))
    for copy in (error, again):
        assert (copy.path, copy.line, copy.key, copy.message) == (Path("/x/a.yaml"), 3, "spec.a", "wrong")
        assert str(copy) == "/x/a.yaml:3: spec.a: wrong"
    assert str(SpecError(Problem("one"), Problem("two"))) == "one\ntwo"


def test_a_document_places_messages_of_its_user() -> None:
    document = parse_document(text_source(slo_text("x").replace("    ", "", 0), Path("x.yaml")), "SLO")
    error = document.error("spec.terms.0.at_most_s", "too strict")
    assert str(error) == "x.yaml:6: spec.terms.0.at_most_s: too strict"
    assert document.error(("spec", "max_rejected_fraction"), "x").line == 4
