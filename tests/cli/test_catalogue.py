"""``hisearch list``, ``schema`` and ``doctor``."""

import json
from pathlib import Path

import pytest

from hisearch.api.fit import study_fits
from hisearch.cli.doctor import installation
from hisearch.specs.kinds import KINDS
from hisearch.specs.resolve import load_study
from hisearch.specs.schema import json_schema
from tests.cli.conftest import Hisearch


def test_list_names_every_kind(hisearch: Hisearch) -> None:
    names = hisearch("list", "--json").json
    assert list(names) == list(KINDS)
    assert "qwen3-32b" in names["Model"]
    assert "interactive-chat" in hisearch("list").out


def test_list_of_a_kind_describes_it_and_survives_broken_files(hisearch: Hisearch, here: Path) -> None:
    (here / "slos").mkdir()
    (here / "slos" / "broken.yaml").write_text("kind: SLO\n")
    rows = {row["name"]: row for row in hisearch("list", "slo", "--json").json["SLO"]}
    assert rows["interactive-chat"]["description"]
    assert rows["interactive-chat"]["problem"] == ""
    assert "broken.yaml" in rows["broken"]["problem"]
    assert "broken" in hisearch("list", "SLO").out


def test_schema(hisearch: Hisearch, here: Path) -> None:
    assert hisearch("schema", "searchspace").json == json_schema("SearchSpace")
    assert hisearch("schema", "SLO", "-o", "slo.json").out == ""
    assert json.loads((here / "slo.json").read_text()) == json_schema("SLO")


def test_doctor_of_the_installation(hisearch: Hisearch) -> None:
    data = hisearch("doctor", "--json").json
    assert data == installation()
    assert data["cores"] >= 1
    assert {"numba", "optuna"} <= set(data["packages"])
    assert Path(data["kernel_cache"]).is_dir()
    assert "kernel_cache" in hisearch("doctor").out


def test_doctor_of_a_study_tells_what_fits(hisearch: Hisearch, here: Path) -> None:
    ran = hisearch("doctor", "small.yaml")
    assert ran.code == 0
    assert "Study small: ok" in ran.out
    assert "Workers that fit into memory: 4 of 4" in ran.out
    large = hisearch("doctor", "small.yaml", "--json", "--set", "spec.model=llama-3.1-70b")
    assert large.code == 1
    assert large.json["ok"] is False
    assert "GiB short" in large.json["problems"][0]
    assert all(fit["kv_capacity_tokens"] == 0 and fit["gib_short"] > 0 for fit in large.json["fits"])


def test_fits_are_those_of_the_roomiest_settings(here: Path) -> None:
    settings = ("spec.space.execution.chunk_tokens=[2048, 16384]",)
    small = {(fit.accelerator, fit.engine): fit for fit in study_fits(load_study(here / "small.yaml"))}
    both = {(fit.accelerator, fit.engine): fit for fit in study_fits(load_study(here / "small.yaml", settings))}
    assert small == both
    alone = study_fits(load_study(here / "small.yaml", ("spec.space.execution.chunk_tokens=[16384]",)))
    assert alone[0].kv_capacity_tokens <= small["h100-sxm", "sglang"].kv_capacity_tokens
    split = study_fits(load_study(here / "small.yaml", ("spec.space.execution.tensor_parallel=[1, 3]",)))
    assert [fit.ok for fit in split] == [fit.tensor_parallel == 1 for fit in split]


@pytest.mark.parametrize("document", ["pair.yaml", "visits.yaml", "qwen3-32b", "interactive-chat", "quickstart"])
def test_doctor_takes_paths_and_names(hisearch: Hisearch, here: Path, document: str) -> None:
    assert hisearch("doctor", document).code == 0


def test_doctor_says_what_is_wrong(hisearch: Hisearch, here: Path) -> None:
    ran = hisearch("doctor", "pair.yaml", "--set", "spec.pools.0.tensor_parallel=3")
    assert ran.code == 1
    assert "problem: " in ran.out
    assert "tensor_parallel" in ran.out
    (here / "pair.yaml").write_text("kind: Deployment\n")
    broken = hisearch("doctor", "pair.yaml", "--json")
    assert broken.code == 1
    assert broken.json["problems"]
    assert hisearch("doctor", "nowhere.yaml").code == 1
    assert hisearch("doctor", "nothing-of-that-name").code == 1
