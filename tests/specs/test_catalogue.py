from __future__ import annotations

from pathlib import Path

import pytest

from hisearch.specs.documents.catalogue import Catalogue, is_path, shipped_root
from hisearch.specs.documents.kinds import FOLDERS, KINDS
from hisearch.specs.errors import SpecError, UnknownReferenceError
from tests.specs.files import slo_text, write


def test_the_working_directory_comes_before_what_ships(project: Path) -> None:
    shipped = Catalogue().get("SLO", "interactive-chat")
    local = write(project / "slos/interactive-chat.yaml", slo_text("interactive-chat"))
    catalogue = Catalogue()
    assert shipped.path.parent == shipped_root() / "slos"
    assert catalogue.get("SLO", "interactive-chat").path == local
    assert catalogue.get("SLO", "batch").path.parent == shipped_root() / "slos"


def test_names_are_those_of_all_roots(project: Path) -> None:
    write(project / "slos/aaa.yml", slo_text("aaa"))
    write(project / "slos/README.md", "not a document")
    names = Catalogue().names("SLO")
    assert names[0] == "aaa"
    assert {"interactive-chat", "batch"} <= set(names)
    assert names == sorted(names)


def test_a_file_brings_its_own_folder_and_catalogue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere, project = tmp_path / "elsewhere", tmp_path / "project"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    write(project / "slos/of-project.yaml", slo_text("of-project"))
    write(project / "studies/slos/beside-study.yaml", slo_text("beside-study"))
    catalogue = Catalogue().for_file(project / "studies/mine.yaml")
    assert {"of-project", "beside-study"} <= set(catalogue.names("SLO"))
    deep = Catalogue().for_file(project / "studies/deployments/mine.yaml")
    assert "of-project" in deep.names("SLO")
    assert "of-project" not in Catalogue().names("SLO")


def test_a_path_is_tried_from_the_base_first(project: Path) -> None:
    in_root = write(project / "x.yaml", slo_text("of-root"))
    in_base = write(project / "studies/x.yaml", slo_text("of-base"))
    catalogue = Catalogue()
    assert catalogue.get("SLO", "x.yaml").path == in_root
    assert catalogue.get("SLO", "x.yaml", base=in_base.parent).path == in_base
    assert catalogue.get("SLO", str(in_base)).name == "of-base"


@pytest.mark.parametrize(
    ("ref", "path"),
    [
        ("qwen2.5-7b", False),
        ("llama-3.1-8b", False),
        ("a/b", True),
        ("x.yaml", True),
        ("x.yml", True),
        ("x.json", True),
    ],
)
def test_what_is_a_path_and_what_a_name(ref: str, path: bool) -> None:
    assert is_path(ref) is path


@pytest.mark.parametrize(
    ("kind", "ref", "message"),
    [
        (
            "Accelerator",
            "h100-sxn",
            "no Accelerator named 'h100-sxn'; did you mean 'h100-sxm'? known: a100-40gb, a100-80gb, ",
        ),
        ("SLO", "./none.yaml", "no file at none.yaml"),
        ("SLO", "zzz", "no SLO named 'zzz'; known: agent-society, batch"),
    ],
)
def test_what_is_not_there_is_refused_with_what_is(project: Path, kind: str, ref: str, message: str) -> None:
    with pytest.raises(UnknownReferenceError) as caught:
        Catalogue().get(kind, ref)
    assert message in str(caught.value)


def test_a_name_is_its_files(project: Path) -> None:
    path = write(project / "slos/a.yaml", slo_text("b"))
    with pytest.raises(SpecError) as caught:
        Catalogue().get("SLO", "a")
    assert str(caught.value) == "slos/a.yaml:3: metadata.name: 'b' is not the file's name, 'a'"
    assert Catalogue().get("SLO", str(path)).name == "b"


def test_a_document_is_of_the_kind_asked_for(project: Path) -> None:
    write(project / "a.yaml", slo_text("a"))
    with pytest.raises(SpecError, match="expected a document of kind Model, got SLO"):
        Catalogue().get("Model", "a.yaml")
    write(project / "a.json", "{}")
    with pytest.raises(SpecError, match="expected a YAML document of kind SLO"):
        Catalogue().get("SLO", "a.json")


def test_a_document_is_read_once_and_knows_its_bytes(project: Path) -> None:
    catalogue = Catalogue()
    first = catalogue.get("SLO", "batch")
    assert catalogue.get("SLO", "batch") is first
    assert len(first.digest) == 64
    local = write(project / "slos/batch.yaml", first.path.read_text())
    assert Catalogue().get("SLO", "batch").digest == first.digest
    local.write_text(local.read_text() + "# a comment\n")
    assert Catalogue().get("SLO", "batch").digest != first.digest


def test_every_kind_has_a_folder() -> None:
    assert FOLDERS.keys() == KINDS.keys()
