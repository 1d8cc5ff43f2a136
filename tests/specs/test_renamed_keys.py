"""Keys under former names are read as before, with a warning; both names at once are refused."""

from __future__ import annotations

import json
import typing
import warnings
from pathlib import Path

import pytest

from hisearch.specs.annotations import members
from hisearch.specs.base import Strict
from hisearch.specs.deployments.deployment import DeploymentSpec
from hisearch.specs.documents.document import parse_document
from hisearch.specs.documents.kinds import KINDS, envelope_model
from hisearch.specs.documents.overrides import apply_overrides
from hisearch.specs.documents.renamed_keys import current_data
from hisearch.specs.errors import RenamedKeyWarning, SpecError
from hisearch.specs.source import Source, text_source

TEXT = """\
apiVersion: hisearch/v1
kind: Deployment
metadata: {name: tiers}
spec:
  model: llama-3.1-8b
  pools:
    - accelerator: h100-sxm
      host: dgx-h100
      engine: {name: sglang}
      tiers: [{medium: ddr5, gib: 64}]
      movement:
        mover: hicache
"""


def _source(text: str) -> Source:
    return text_source(text, Path("tiers.yaml"))


def _models(annotation: object, seen: set[type[Strict]]) -> set[type[Strict]]:
    for member in members(annotation):
        for argument in typing.get_args(member):
            _models(argument, seen)
        if isinstance(member, type) and issubclass(member, Strict) and member not in seen:
            seen.add(member)
            for field in member.model_fields.values():
                _models(field.annotation, seen)
    return seen


def test_a_former_name_is_read_and_the_warning_names_line_and_new_name() -> None:
    with pytest.warns(RenamedKeyWarning, match=r"tiers\.yaml:12: spec\.pools\.0\.movement\.mover: .*'kv_connector'"):
        former = parse_document(_source(TEXT), "Deployment")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        current = parse_document(_source(TEXT.replace("mover:", "kv_connector:")), "Deployment")
    assert former.spec == current.spec


def test_errors_in_it_have_its_line() -> None:
    with pytest.warns(RenamedKeyWarning), pytest.raises(SpecError) as caught:
        parse_document(_source(TEXT.replace("mover: hicache", "mover: hicash")), "Deployment")
    (problem,) = caught.value.problems
    assert (problem.line, problem.key) == (12, "spec.pools.0.movement.kv_connector")


def test_both_names_at_once_are_refused() -> None:
    with pytest.raises(SpecError, match="mover: unknown key"):
        parse_document(_source(f"{TEXT}        kv_connector: hicache\n"), "Deployment")


@pytest.mark.parametrize("text", [TEXT, TEXT.replace("mover:", "kv_connector:")])
def test_a_setting_may_use_a_former_name_whatever_the_file_does(text: str) -> None:
    with warnings.catch_warnings(record=True) as noted:
        warnings.simplefilter("always")
        source = apply_overrides(_source(text), "Deployment", ["spec.pools.0.movement.mover=lmcache"])
    assert source.data["spec"]["pools"][0]["movement"] == {"kv_connector": "lmcache"}
    (of_setting,) = [str(note.message) for note in noted if "--set" in str(note.message)]
    assert of_setting.startswith("--set spec.pools.0.movement.mover=lmcache: spec.pools.0.movement.mover: this key is ")
    assert len(noted) == 1 + ("mover: hicache" in text)


def test_what_earlier_versions_stored_is_read_silently() -> None:
    data = _source(TEXT).data["spec"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        spec = DeploymentSpec.model_validate(current_data(json.loads(json.dumps(data)), DeploymentSpec))
    movement = spec.pools[0].movement
    assert movement is not None
    assert movement.kv_connector == "hicache"


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_former_names_lead_to_fields_and_are_none_themselves(kind: str) -> None:
    for model in _models(envelope_model(kind), set()):
        assert set(model.renamed.values()) <= set(model.model_fields)
        assert not set(model.renamed) & set(model.model_fields)
