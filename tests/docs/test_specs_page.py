"""docs/specs.md matches the spec models."""

import subprocess
import sys

import pytest

from hisearch.specs.documents.kinds import KINDS, json_schema
from tests.docs.pages import ROOT, anchors


def test_it_is_what_the_generator_prints() -> None:
    generator = [sys.executable, str(ROOT / "docs" / "generate_specs.py")]
    printed = subprocess.run(generator, capture_output=True, check=True, cwd=ROOT).stdout.decode()
    written = (ROOT / "docs" / "specs.md").read_text(encoding="utf-8")
    assert written == printed, "docs/specs.md is stale: run `make docs`"


def test_every_kind_has_a_heading() -> None:
    assert {kind.lower() for kind in KINDS} <= anchors(ROOT / "docs" / "specs.md")


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_is_described(kind: str) -> None:
    for name, section in json_schema(kind)["$defs"].items():
        assert section.get("description"), name
        for key, field in section.get("properties", {}).items():
            assert field.get("description"), f"{name}.{key}"
