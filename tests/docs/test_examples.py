"""YAML that the pages show is YAML that the program takes."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from hisearch.api.deployments.workload import load_trace, parse_columns
from hisearch.specs.base import API_VERSION
from hisearch.specs.checks.doctor import load_any
from hisearch.specs.documents.catalogue import Catalogue, shipped_root
from hisearch.specs.documents.kinds import KINDS
from tests.docs.pages import PAGES, Snippet, blocks, commands

EXAMPLES = [block for page in PAGES for block in blocks(page, "yaml", "yml")]


def document(text: str) -> tuple[str, str]:
    """An example as a whole document, and its kind; a lone ``spec:`` is of the kind that has all its keys."""
    data: dict[str, Any] = yaml.safe_load(text)
    if "apiVersion" in data:
        return text, data["kind"]
    assert set(data) == {"spec"}, "an example is a document, or its spec alone"
    kinds = [kind for kind, model in KINDS.items() if set(data["spec"]) <= set(model.model_fields)]
    assert len(kinds) == 1, f"of which kind? {kinds}"
    return f"apiVersion: {API_VERSION}\nkind: {kinds[0]}\nmetadata: {{name: example}}\n{text}", kinds[0]


@pytest.mark.parametrize("example", EXAMPLES, ids=str)
def test_an_example_is_valid(example: Snippet, tmp_path: Path) -> None:
    text, kind = document(example.text)
    path, trace = tmp_path / "example.yaml", tmp_path / "trace.jsonl"
    path.write_text(text, encoding="utf-8")
    trace.write_text("{}\n")
    settings = [f"spec.workload.trace={trace}"] if kind == "Study" else []
    checkup = load_any(path, settings, Catalogue(shipped_root()))
    assert checkup.problems == (), example


def test_the_csv_example_is_read_in_both_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = next(page for page in PAGES if page.name == "traces.md")
    (table,) = blocks(page, "csv")
    workload = next(block for block in blocks(page, "yaml") if "own.csv" in block.text)
    mapping = next(words for _, words in commands(page) if words[:3] == ["trace", "import", "own.csv"])
    (tmp_path / "own.csv").write_text(table.text)
    (tmp_path / "own.yaml").write_text(workload.text)
    monkeypatch.chdir(tmp_path)
    columns = parse_columns([mapping[mapping.index("--columns") + 1]])
    by_document, by_option = load_trace("own.yaml"), load_trace("own.csv", columns=columns)
    assert by_document.digest == by_option.digest
    assert by_document.arrays.arrival_s.tolist() == [0.0, 1.25, 41.0]
    assert by_document.arrays.session.tolist() == [0, 1, 0]


def test_every_kind_has_an_example() -> None:
    assert {document(example.text)[1] for example in EXAMPLES} == set(KINDS)
