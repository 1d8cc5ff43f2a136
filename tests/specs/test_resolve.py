from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from hisearch.specs.documents.catalogue import Catalogue, shipped_root
from hisearch.specs.documents.document import Document
from hisearch.specs.documents.from_slo import study_from_slo
from hisearch.specs.documents.resolve import load_deployment, load_study
from hisearch.specs.documents.resolved import ResolvedStudy
from hisearch.specs.errors import SpecError
from tests.specs.files import STUDY, refusal, slo_text, write

WORKLOAD = """\
    apiVersion: hisearch/v1
    kind: Workload
    metadata: {name: recorded}
    spec:
      file: {path: data/log.csv, format: csv}
"""
GENERATED = (
    "{generator: {requests: 5, arrivals: {rate_rps: 1.0}, "
    "first_input: {distribution: constant, scale_tokens: 9}, output: {distribution: constant, scale_tokens: 9}}}"
)


def _same_but_for_pins(study: ResolvedStudy) -> dict[str, object]:
    parts = {key: getattr(study, key).spec.model_dump() for key in ("model", "slo", "space", "profile")}
    workload = study.workload if isinstance(study.workload, Path) else study.workload.spec
    return {
        **parts,
        "workload": workload,
        "study": study.study.model_dump(exclude={"pins", "model", "slo", "space", "workload"}),
    }


def test_everything_a_study_names_is_there(project: Path) -> None:
    study = load_study("mine")
    assert study.name == "mine"
    assert study.model.name == "qwen3-8b"
    assert study.profile.name == "auto"
    assert list(study.accelerators) == ["h100-sxm", "h200", "l40s"]
    assert list(study.hosts) == ["hgx-h100-8", "hgx-h200-8", "l40s-8"]
    assert {"ddr5", "nvme-gen4"} <= set(study.media)
    assert study.workload == project / "studies/trace.csv"
    assert study.trace_file == project / "studies/trace.csv"


def test_digests_are_those_of_the_files(project: Path) -> None:
    digests = load_study("mine").input_digests()
    assert {str(project / "studies/mine.yaml"), str(project / "studies/trace.csv")} <= set(digests)
    assert str(shipped_root() / "profiles/hosts/hgx-h100-8.yaml") in digests
    for path, digest in digests.items():
        assert digest == hashlib.sha256(Path(path).read_bytes()).hexdigest()


def test_relative_paths_start_at_the_file_that_holds_them_then_at_the_working_directory(project: Path) -> None:
    write(project / "trace.csv", "")
    assert load_study("mine").workload == project / "studies/trace.csv"
    (project / "studies/trace.csv").unlink()
    assert load_study("mine").workload == project / "trace.csv"


def test_a_path_on_the_command_line_starts_at_the_working_directory(project: Path) -> None:
    message = refusal("mine", "spec.workload.trace=trace.csv")
    assert (
        message == "studies/mine.yaml (--set spec.workload.trace=trace.csv): spec.workload.trace: no file at trace.csv"
    )
    assert load_study("mine", ["spec.workload.trace=studies/trace.csv"]).trace_file == project / "studies/trace.csv"


@pytest.mark.parametrize("ref", ["recorded", "../traces/recorded.yaml"])
def test_a_workload_documents_file_is_found_and_made_absolute(project: Path, ref: str) -> None:
    write(project / "traces/recorded.yaml", WORKLOAD)
    write(project / "studies/mine.yaml", STUDY.replace("./trace.csv", ref))
    message = "traces/recorded.yaml:5: spec.file.path: no file at traces/data/log.csv or data/log.csv"
    assert refusal("mine") == message
    write(project / "traces/data/log.csv", "")
    study = load_study("mine")
    assert isinstance(study.workload, Document)
    assert study.workload.spec.file.path == str(project / "traces/data/log.csv")
    assert study.trace_file == project / "traces/data/log.csv"


def test_inline_parts_are_documents_of_their_own(project: Path) -> None:
    slo = "\n        terms:\n          - {metric: e2e_s, percentile: 50, at_most_s: 9}"
    text = STUDY.replace(" interactive-chat", slo).replace("./trace.csv", GENERATED)
    write(project / "studies/mine.yaml", text)
    study = load_study("mine")
    assert (study.slo.name, study.slo.inline) == ("mine-slo", True)
    assert (
        str(study.slo.error("spec.terms.0.at_most_s", "no")) == "studies/mine.yaml:11: spec.slo.terms.0.at_most_s: no"
    )
    assert isinstance(study.workload, Document)
    assert study.workload.name == "mine-workload"
    assert study.trace_file is None
    assert not any(str(study.slo.digest) == digest for digest in study.input_digests().values())


def test_references_inside_a_space_are_placed_there(project: Path) -> None:
    text = (shipped_root() / "spaces/quickstart.yaml").read_text()
    write(project / "spaces/own.yaml", text.replace("l40s]", "l40x]").replace("name: quickstart", "name: own"))
    assert refusal("mine", "spec.space=own").startswith(
        "spaces/own.yaml:8: spec.execution.accelerators.2: no Accelerator named 'l40x'; did you mean 'l40'? known: "
    )
    write(project / "spaces/own.yaml", text.replace("ddr5", "ddr6").replace("name: quickstart", "name: own"))
    assert ": spec.cache.tiers.0.media.0: no Medium named 'ddr6'; did you mean 'ddr5'?" in refusal(
        "mine", "spec.space=own"
    )


def test_deadlines_need_a_term_that_sets_them(project: Path) -> None:
    text = (shipped_root() / "spaces/quickstart.yaml").read_text().replace("name: quickstart", "name: own")
    write(project / "spaces/own.yaml", text.replace("  execution:\n", "  execution:\n    schedules: [fcfs, edf]\n"))
    assert "spec.execution.schedules.1: edf goes by deadlines, and" in refusal("mine", "spec.space=own")


def test_an_accelerators_host_is_placed_there(project: Path) -> None:
    text = (shipped_root() / "profiles/accelerators/h100-sxm.yaml").read_text()
    write(project / "profiles/accelerators/h100-sxm.yaml", text.replace("host: hgx-h100-8", "host: hgx-h100"))
    message = refusal("mine")
    assert message.startswith("profiles/accelerators/h100-sxm.yaml:")
    assert "spec.host: no Host named 'hgx-h100'; did you mean 'hgx-h100-8'?" in message


def test_a_resolved_study_names_and_pins_what_ships(project: Path) -> None:
    study = load_study("mine", ["spec.seed=5"])
    text = study.to_yaml()
    assert "# Setting applied: 'spec.seed=5'" in text
    again = load_study(write(project / "runs/study.yaml", text))
    assert again.study.model == "qwen3-8b"
    assert again.study.pins == study.pins()
    assert again.study.pins["trace"] == hashlib.sha256((project / "studies/trace.csv").read_bytes()).hexdigest()
    assert _same_but_for_pins(again) == _same_but_for_pins(study)
    assert again.to_yaml() == text.replace("# Setting applied: 'spec.seed=5'\n", "")


def test_a_resolved_study_writes_out_what_is_the_users_own(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slo = write(project / "slos/own.yaml", slo_text("own"))
    workload = write(project / "traces/recorded.yaml", WORKLOAD)
    write(project / "traces/data/log.csv", "")
    study = load_study("mine", ["spec.slo=own", "spec.workload.trace=recorded"])
    kept = write(project / "runs/study.yaml", study.to_yaml())
    before = _same_but_for_pins(study)
    slo.unlink()
    workload.unlink()
    elsewhere = project / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert _same_but_for_pins(load_study(kept)) == before


def test_what_has_changed_since_it_was_pinned_is_refused(project: Path) -> None:
    kept = write(project / "runs/study.yaml", load_study("mine").to_yaml())
    h200 = (shipped_root() / "profiles/accelerators/h200.yaml").read_text()
    write(project / "profiles/accelerators/h200.yaml", h200.replace("usd_per_hour: 3.5", "usd_per_hour: 9.9"))
    (project / "studies/trace.csv").write_text("other\n")
    lines = refusal(kept).splitlines()
    assert len(lines) == 2
    assert ": spec.pins.Accelerator/h200: has changed since it was pinned (SHA-256 " in lines[0]
    assert ": spec.pins.trace: has changed since it was pinned (SHA-256 " in lines[1]
    assert "spec.pins.SLO/other: not used" in refusal("mine", "spec.pins={SLO/other: abc}")


def test_a_deployment_and_all_it_names() -> None:
    resolved = load_deployment("qwen3-32b-h100-tp2", ["spec.pools.0.host=hgx-h200-8"], Catalogue(shipped_root()))
    assert resolved.name == "qwen3-32b-h100-tp2"
    assert resolved.deployment.pool.tensor_parallel == 2
    assert list(resolved.accelerators) == ["h100-sxm"]
    assert set(resolved.hosts) == {"hgx-h100-8", "hgx-h200-8"}
    assert {"ddr5", "nvme-gen4"} <= set(resolved.media)
    assert resolved.profile.name == "auto"


def test_a_deployments_references_are_placed(project: Path) -> None:
    with pytest.raises(SpecError, match=r"spec.pools.0.accelerator: no Accelerator named 'h1000'"):
        load_deployment("qwen3-32b-h100-tp2", ["spec.pools.0.accelerator=h1000"])
    with pytest.raises(SpecError, match=r"spec.profile: no LatencyProfile named 'rooflin'; did you mean 'roofline'\?"):
        load_deployment("qwen3-32b-h100-tp2", ["spec.profile=rooflin"])


def test_a_profile_of_tables_needs_tables(project: Path) -> None:
    space = (shipped_root() / "spaces/quickstart.yaml").read_text().replace("name: quickstart", "name: own")
    write(project / "spaces/own.yaml", space.rstrip() + "\n  profile: vllm-tables\n")
    line = len(space.rstrip().splitlines()) + 1
    assert refusal("mine", "spec.space=own").startswith(
        f"spaces/own.yaml:{line}: spec.profile: profile 'vllm-tables' names no operator tables; copy it"
    )
    with pytest.raises(SpecError, match=r"spec\.profile: profile 'vllm-tables' names no operator tables"):
        load_deployment("qwen3-32b-h100-tp2", ["spec.profile=vllm-tables"])


def test_a_study_from_an_slo_alone(project: Path) -> None:
    slo_file = write(project / "promises/own.yaml", slo_text("own"))
    study, text = study_from_slo(slo_file, "qwen3-8b", "studies/trace.csv", overrides=["spec.budget.simulations=9"])
    assert study.name == "own-qwen3-8b"
    assert (study.slo.name, study.space.name, study.study.budget.simulations) == ("own", "quickstart", 9)
    assert study.trace_file == project / "studies/trace.csv"
    assert "hisearch's default" in study.document.description
    for word in ("objectives:", "seconds: 600.0", "simulations: 9", "seed: 0", "space: quickstart"):
        assert word in text
    again = load_study(write(project / "own-qwen3-8b.yaml", text))
    assert _same_but_for_pins(again) == _same_but_for_pins(study)


@pytest.mark.parametrize(
    ("terms", "axis"),
    [
        ("{metric: tpot_s, percentile: 90, at_most_s: 1}, {metric: ttft_s, percentile: 95, at_most_s: 1}", "ttft_p95"),
        ("{metric: e2e_s, percentile: 90, at_most_s: 60}", "e2e_p90"),
        (
            "{metric: tpot_s, percentile: 90, at_most_s: 1}, {metric: ttft_s, percentile: 97.5, at_most_s: 1}",
            "ttft_p99",
        ),
        ("{metric: tpot_s, percentile: 93, at_most_s: 1}, {metric: e2e_s, percentile: 90, at_most_s: 9}", "tpot_p95"),
        ("{metric: ttft_s, percentile: 99.9, at_most_s: 1}", "ttft_p99"),
    ],
)
def test_the_latency_that_a_study_minimises_by_default_is_the_slo_s(project: Path, terms: str, axis: str) -> None:
    envelope = "apiVersion: hisearch/v1\nkind: SLO\nmetadata: {name: own}\nspec: "
    slo_file = write(project / "own.yaml", f"{envelope}{{terms: [{terms}]}}\n")
    study, kept = study_from_slo(slo_file, "qwen3-8b", "studies/trace.csv")
    assert study.study.objectives == [axis, "goodput", "usd_per_hour"]
    assert load_study(write(project / "again.yaml", kept)).study.objectives == study.study.objectives
    overrides = ["spec.objectives=[tpot_p50, goodput]"]
    assert (
        study_from_slo(slo_file, "qwen3-8b", "studies/trace.csv", overrides=overrides)[0].study.objectives[0]
        == "tpot_p50"
    )


@pytest.mark.parametrize(
    ("slo", "model", "trace", "message"),
    [
        ("none", "qwen3-8b", "studies/trace.csv", "no SLO named 'none'; known: agent-society, batch"),
        (Path("none.yaml"), "qwen3-8b", "studies/trace.csv", "no file at none.yaml"),
        ("batch", "qwen3", "studies/trace.csv", "no Model named 'qwen3'; did you mean 'qwen3-"),
        ("batch", "qwen3-8b", "no.csv", "--trace: no file at no.csv"),
    ],
)
def test_a_study_from_an_slo_says_what_is_missing(
    project: Path, slo: str | Path, model: str, trace: str, message: str
) -> None:
    with pytest.raises(SpecError) as caught:
        study_from_slo(slo, model, trace)
    assert message in str(caught.value)


def test_names_that_lead_nowhere_are_reported_with_all_else(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "apiVersion: hisearch/v1\nkind: Study\nmetadata: {name: mine}\nspec:\n  model: qwen3-33b\n"
        "  workload: {trace: chat-multiturn, load: -1}\n  slo: interactive-chat\n  space: quikstart\n",
        encoding="utf-8",
    )
    with pytest.raises(SpecError) as caught:
        load_study(path)
    assert [problem.key for problem in caught.value.problems] == ["spec.model", "spec.workload.load", "spec.space"]
    assert "did you mean 'quickstart'?" in caught.value.problems[2].message


def test_a_misspelt_file_gets_the_nearest_name_as_a_hint(tmp_path: Path) -> None:
    (tmp_path / "interactive.yaml").touch()
    with pytest.raises(SpecError, match=r"no file at .*interctive\.yaml; did you mean 'interactive\.yaml'\?"):
        load_study(tmp_path / "interctive.yaml")
