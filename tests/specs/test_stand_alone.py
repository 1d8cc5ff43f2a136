"""A deployment with all of the user's own documents written into it."""

from __future__ import annotations

from pathlib import Path

import pytest

from hisearch.specs.documents.catalogue import shipped_root
from hisearch.specs.documents.document import parse_document
from hisearch.specs.documents.resolve import load_deployment
from hisearch.specs.documents.resolved import ResolvedDeployment
from hisearch.specs.documents.stand_alone import stand_alone
from hisearch.specs.errors import SpecError
from hisearch.specs.source import text_source
from hisearch.specs.yaml_nodes import dump_yaml

LOCAL = {
    "model.yaml": ("models/llama-3.1-8b", {"max_context_tokens: 131072": "max_context_tokens: 4096"}),
    "card.yaml": ("accelerators/l40s", {"host: l40s-8": "host: cards/box.yaml", "name: l40s": "name: our-card"}),
    "box.yaml": ("hosts/l40s-8", {"dram: ddr5": "dram: cards/ram.yaml", "name: l40s-8": "name: our-box"}),
    "ram.yaml": ("media/ddr5", {"name: ddr5": "name: our-ram"}),
    "profile.yaml": ("latency/roofline", {"name: roofline": "name: ours"}),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A deployment that names documents of every kind by paths next to it."""
    (tmp_path / "cards").mkdir()
    for name, (shipped, changes) in LOCAL.items():
        text = (shipped_root() / "profiles" / f"{shipped}.yaml").read_text()
        for old, new in changes.items():
            assert old in text, (name, old)
            text = text.replace(old, new.replace("cards/", f"{tmp_path}/cards/"))
        (tmp_path / "cards" / name).write_text(text)
    (tmp_path / "mine.yaml").write_text(
        """\
apiVersion: hisearch/v1
kind: Deployment
metadata: {name: mine}
spec:
  model: cards/model.yaml
  pools:
    - accelerator: cards/card.yaml
      engine: {name: vllm}
      tiers: [{medium: cards/ram.yaml, gib: 8}]
  profile: cards/profile.yaml
"""
    )
    return tmp_path


def alone(resolved: ResolvedDeployment, path: Path) -> Path:
    spec = stand_alone(resolved.deployment, resolved.model, resolved.profile, resolved.hardware)
    document = {
        "apiVersion": "hisearch/v1",
        "kind": "Deployment",
        "metadata": {"name": "alone"},
        "spec": spec.model_dump(mode="json"),
    }
    path.write_text(dump_yaml(document))
    return path


def test_it_is_the_same_deployment_from_anywhere(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolved = load_deployment(folder / "mine.yaml")
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    path = alone(resolved, elsewhere / "deployment.yaml")
    for file in (folder / "cards").iterdir():
        file.unlink()
    monkeypatch.chdir(elsewhere)
    again = load_deployment(path)
    assert again.model.spec == resolved.model.spec
    assert again.model.spec.max_context_tokens == 4096
    assert again.profile.spec == resolved.profile.spec
    pool = again.deployment.pool
    assert (pool.accelerator, pool.tiers[0].medium) == ("our-card", "our-ram")
    card = again.accelerators["our-card"].spec
    assert card.model_copy(update={"host": None}) == resolved.accelerators["cards/card.yaml"].spec.model_copy(
        update={"host": None}
    )
    assert card.host == "our-box"
    assert again.hosts["our-box"].spec.dram == "our-ram"
    assert again.media["our-ram"].spec == resolved.media["cards/ram.yaml"].spec
    assert "nvme" in str(sorted(again.media))


def test_what_ships_is_named(tmp_path: Path) -> None:
    resolved = load_deployment("qwen3-32b-h100-tp2")
    spec = stand_alone(resolved.deployment, resolved.model, resolved.profile, resolved.hardware)
    assert spec == resolved.deployment
    assert "definitions" not in spec.model_dump()


def test_an_error_in_a_definition_has_its_line(folder: Path, tmp_path: Path) -> None:
    path = alone(load_deployment(folder / "mine.yaml"), tmp_path / "deployment.yaml")
    text = path.read_text().replace("layers: 32", "layers: none")
    with pytest.raises(SpecError) as caught:
        parse_document(text_source(text, path))
    assert "layers" in caught.value.key
    assert caught.value.key.startswith("spec.definitions.models.")
    assert caught.value.line == 1 + text[: text.index("layers: none")].count("\n")
