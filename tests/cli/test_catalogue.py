"""``hisearch list``, ``schema`` and ``doctor``."""

import json
import re
from pathlib import Path

import pytest

from hisearch.cli.verbs.doctor import installation
from hisearch.search.model.fit import deployment_fits, study_fits
from hisearch.specs.documents.kinds import KINDS, json_schema
from hisearch.specs.documents.resolve import load_deployment, load_study
from tests.cli.conftest import Hisearch
from tests.cli.documents import DEPLOYMENT


def test_list_names_every_kind(hisearch: Hisearch) -> None:
    names = hisearch("list", "--json").json
    assert list(names) == list(KINDS)
    assert "qwen3-32b" in names["Model"]
    assert "interactive-chat" in hisearch("list").out


def test_list_of_a_kind_describes_it_and_survives_broken_files(hisearch: Hisearch, workdir: Path) -> None:
    (workdir / "slos").mkdir()
    (workdir / "slos" / "broken.yaml").write_text("kind: SLO\n")
    rows = {row["name"]: row for row in hisearch("list", "slo", "--json").json["SLO"]}
    assert rows["interactive-chat"]["description"]
    assert rows["interactive-chat"]["problem"] == ""
    assert "broken.yaml" in rows["broken"]["problem"]
    assert "broken" in hisearch("list", "SLO").out


def test_a_document_is_copied_to_be_edited_and_then_comes_first(hisearch: Hisearch, workdir: Path) -> None:
    copied = hisearch("list", "accelerator", "--copy", "h200")
    place = workdir / "profiles" / "accelerators" / "h200.yaml"
    assert (copied.code, copied.out) == (0, "profiles/accelerators/h200.yaml: edit it, it now comes first\n")
    place.write_text(place.read_text().replace("description: ", "description: Ours, an "))
    rows = {row["name"]: row for row in hisearch("list", "Accelerator", "--json").json["Accelerator"]}
    assert rows["h200"]["path"] == str(place)
    assert rows["h200"]["description"].startswith("Ours, an ")
    again = hisearch("list", "Accelerator", "--copy", "h200")
    assert again.code == 2
    assert "is there already" in again.err
    assert "Ours, an " in place.read_text()
    assert "did you mean 'h200'" in hisearch("list", "Accelerator", "--copy", "h200x").err
    assert "of which kind" in hisearch("list", "--copy", "h200").err
    assert hisearch("list", "SLO", "--copy", "interactive-chat", "--json").json == {
        "path": "slos/interactive-chat.yaml"
    }


def test_schema(hisearch: Hisearch, workdir: Path) -> None:
    assert hisearch("schema", "searchspace").json == json_schema("SearchSpace")
    assert hisearch("schema", "SLO", "-o", "slo.json").out == ""
    assert json.loads((workdir / "slo.json").read_text()) == json_schema("SLO")


def test_doctor_of_the_installation(hisearch: Hisearch) -> None:
    data = hisearch("doctor", "--json").json
    assert data == installation()
    assert data["cores"] >= 1
    assert {"numba", "optuna"} <= set(data["packages"])
    assert Path(data["kernel_cache"]).is_dir()
    assert "kernel_cache" in hisearch("doctor").out


def test_doctor_of_a_study_tells_what_fits(hisearch: Hisearch, workdir: Path) -> None:
    ran = hisearch("doctor", "small.yaml")
    assert ran.code == 0
    assert "Study small: ok" in ran.out
    assert "Workers that fit into memory and host: 4 of 4" in ran.out
    assert "at memory fraction 0.9, without host memory; of the space's chunk sizes" in ran.out
    large = hisearch("doctor", "small.yaml", "--json", "--set", "spec.model=llama-3.1-70b")
    assert large.code == 1
    assert large.json["ok"] is False
    assert "GiB short" in large.json["problems"][0]
    assert all(fit["kv_capacity_tokens"] == 0 and fit["gib_short"] > 0 for fit in large.json["fits"])


def test_fits_are_those_of_the_roomiest_settings(workdir: Path) -> None:
    settings = ("spec.space.execution.chunk_tokens=[2048, 16384]",)
    small = {(fit.accelerator, fit.engine): fit for fit in study_fits(load_study(workdir / "small.yaml"))}
    both = {(fit.accelerator, fit.engine): fit for fit in study_fits(load_study(workdir / "small.yaml", settings))}
    assert small == both
    assert {(fit.chunk_tokens, fit.max_running_requests, fit.memory_fraction) for fit in both.values()} == {
        (2048, 128, 0.9)
    }
    alone = study_fits(load_study(workdir / "small.yaml", ("spec.space.execution.chunk_tokens=[16384]",)))
    assert alone[0].kv_capacity_tokens <= small["h100-sxm", "sglang"].kv_capacity_tokens
    split = study_fits(load_study(workdir / "small.yaml", ("spec.space.execution.tensor_parallel=[1, 3]",)))
    assert [fit.ok for fit in split] == [fit.tensor_parallel == 1 for fit in split]


def test_kv_of_models_with_windows_is_in_one_unit(hisearch: Hisearch, workdir: Path) -> None:
    """Sliding windows share vLLM's pool, or are set aside where there are tiers: a few per cent, not half."""
    pool = "{accelerator: h100-sxm, tensor_parallel: 2, replicas: 1, engine: {name: vllm}"
    text = DEPLOYMENT[: DEPLOYMENT.index("spec:")] + (
        f"spec:\n  model: gpt-oss-120b\n  pools:\n    - {pool}}}\n"
        f"    - {pool}, name: tiered, tiers: [{{medium: ddr5, gib: 200}}]}}\n"
    )
    (workdir / "oss.yaml").write_text(text, encoding="utf-8")
    plain, tiered = hisearch("doctor", "oss.yaml", "--json").json["fits"]
    assert plain["request_tokens"] == tiered["request_tokens"] == 131072
    assert plain["kv_capacity_tokens"] == pytest.approx(tiered["kv_capacity_tokens"], rel=0.03)
    assert plain["kv_capacity_tokens"] > tiered["kv_capacity_tokens"]
    assert "of models with sliding windows, in requests of 131,072 tokens." in hisearch("doctor", "oss.yaml").out
    assert "sliding windows" not in hisearch("doctor", "small.yaml").out


@pytest.mark.parametrize("document", ["pair.yaml", "visits.yaml", "qwen3-32b", "interactive-chat", "quickstart"])
def test_doctor_takes_paths_and_names(hisearch: Hisearch, workdir: Path, document: str) -> None:
    assert hisearch("doctor", document).code == 0


def test_doctor_says_what_is_wrong(hisearch: Hisearch, workdir: Path) -> None:
    ran = hisearch("doctor", "pair.yaml", "--set", "spec.pools.0.tensor_parallel=3")
    assert ran.code == 1
    assert "problem: " in ran.out
    assert "tensor_parallel" in ran.out
    (workdir / "pair.yaml").write_text("kind: Deployment\n")
    broken = hisearch("doctor", "pair.yaml", "--json")
    assert broken.code == 1
    assert broken.json["problems"]
    assert hisearch("doctor", "nowhere.yaml").code == 1
    assert hisearch("doctor", "nothing-of-that-name").code == 1


def test_a_worker_does_not_exceed_its_host(workdir: Path) -> None:
    settings = ("spec.space.execution.accelerators=[a6000]", "spec.space.execution.tensor_parallel=[4, 8]")
    fits = study_fits(load_study(workdir / "small.yaml", settings))
    assert {(fit.tensor_parallel, fit.ok) for fit in fits} == {(4, True), (8, False)}
    assert all("exceeds the 4 accelerator slots" in fit.problem for fit in fits if not fit.ok)
    resolved = load_deployment(
        workdir / "pair.yaml", ("spec.pools.0.host=workstation-a6000-4", "spec.pools.0.tensor_parallel=8")
    )
    (fit,) = deployment_fits(resolved)
    assert "exceeds the 4 accelerator slots" in fit.problem


def test_only_kv_formats_that_the_engine_has_are_looked_at(workdir: Path) -> None:
    fits = study_fits(load_study(workdir / "small.yaml", ("spec.space.execution.kv_dtypes=[bf16, fp4]",)))
    assert {(fit.engine, fit.kv_dtype) for fit in fits} == {("sglang", "bf16"), ("sglang", "fp4"), ("vllm", "bf16")}


def test_doctor_says_which_workers_need_fp8_weights(hisearch: Hisearch, workdir: Path) -> None:
    settings = ("--set", "spec.model=qwen3-32b", "--set", "spec.space.execution.weight_dtypes=[fp8]")
    expected = "tensor_parallel 1: SGLang loads bf16 weights in full before it quantises them to fp8"
    small = hisearch("doctor", "small.yaml", *settings, "--set", "spec.space.execution.accelerators=[l40s]", "--json")
    assert [warning for warning in small.json["warnings"] if warning.startswith(expected)]
    large = hisearch("doctor", "small.yaml", *settings, "--set", "spec.space.execution.accelerators=[h200]", "--json")
    assert not [warning for warning in large.json["warnings"] if "SGLang loads" in warning]


def test_doctor_reads_the_trace(hisearch: Hisearch, workdir: Path) -> None:
    rows = [{"arrival_s": 0, "input_tokens": tokens, "output_tokens": 10} for tokens in (500, 200_000, 131_070)]
    header = {"format": "hisearch-trace", "version": 1}
    (workdir / "long.jsonl").write_text("".join(json.dumps(row) + "\n" for row in (header, *rows)))
    ran = hisearch("doctor", "small.yaml", "--set", "spec.workload.trace=long.jsonl")
    assert ran.code == 0
    assert "long on llama-3.1-8b: 2 of 3 requests (66.7 %) exceed the model's window of 131,072 tokens" in ran.out
    assert "1 of them with the prompt alone" in ran.out
    assert "exceed the model's window" not in hisearch("doctor", "small.yaml").out
    (workdir / "long.jsonl").write_text('{"format": "hisearch-trace", "version": 1}\n{"input_tokens": 0}\n')
    broken = hisearch("doctor", "small.yaml", "--set", "spec.workload.trace=long.jsonl")
    assert broken.code == 1
    assert "problem: long.jsonl:2" in broken.out


def test_doctor_prints_figures_of_a_model_in_units(hisearch: Hisearch) -> None:
    shown = hisearch("doctor", "llama-3.1-8b").out
    assert re.search(r"^ *KV bytes per token +131,072 *$", shown, re.MULTILINE)
    assert re.search(r"^ *weights \(GiB\) +14\.96 *$", shown, re.MULTILINE)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("doctor", "one.jsonl"), "one.jsonl is a trace file; expected a document, by"),
        (("doctor", "one.jsonl"), "its path; `hisearch trace stats` checks a trace"),
        (("doctor", "."), ". is a folder; expected a document, by"),
        (("run", "one.jsonl"), "one.jsonl is a trace file; expected a document of kind Study, FleetStudy or SLO"),
        (("run", "./one.jsonl"), "one.jsonl: a trace file; expected a YAML document"),
        (("run", "sub"), "sub is a folder; expected a document of kind Study, FleetStudy or SLO"),
        (("run", "sub/"), "sub is a folder; expected a file"),
        (("simulate", "one.jsonl", "--trace", "visits.yaml"), "expected a document of kind Deployment"),
    ],
)
def test_what_is_there_is_not_called_missing(
    hisearch: Hisearch, workdir: Path, arguments: tuple[str, ...], expected: str
) -> None:
    (workdir / "one.jsonl").write_text('{"format": "hisearch-trace", "version": 1}\n')
    (workdir / "sub").mkdir()
    ran = hisearch(*arguments)
    assert (ran.code, ran.out) == (1, "")
    assert expected in ran.err


def test_doctor_looks_at_every_pool(hisearch: Hisearch, tmp_path: Path) -> None:
    path = tmp_path / "pools.yaml"
    path.write_text(
        "apiVersion: hisearch/v1\nkind: Deployment\nmetadata: {name: mixed}\nspec:\n  model: llama-3.1-70b\n  pools:\n"
        "    - {name: large, accelerator: h100-sxm, tensor_parallel: 4, engine: {name: vllm}}\n"
        "    - {name: small, accelerator: l40s, engine: {name: vllm}}\n",
        encoding="utf-8",
    )
    ran = hisearch("doctor", path, "--json")
    assert ran.code == 1
    assert [(fit["pool"], fit["ok"]) for fit in ran.json["fits"]] == [("large", True), ("small", False)]
    (problem,) = ran.json["problems"]
    assert problem.startswith("mixed: pool small: ")
    assert "does not fit" in problem
    assert "Workers that fit into memory and host: 1 of 2" in hisearch("doctor", path).out


def test_doctor_of_a_model_gives_what_its_publisher_gives(hisearch: Hisearch, workdir: Path) -> None:
    config = {
        "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 100, "max_position_embeddings": 4096,
    }  # fmt: skip
    (workdir / "mine.json").write_text(json.dumps(config), encoding="utf-8")
    about = hisearch("doctor", "mine.json", "--json").json["model"]
    # Per layer: q and o 64 x 64, k and v 64 x 32, three of 64 x 128, two norms; embedding, LM head and one more norm.
    assert about["parameters"] == 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128 + 2 * 64) + 2 * 100 * 64 + 64
    assert "active_parameters" not in about, "all of a dense model's are active"
    assert about["served_as"] == "mine (no Hugging Face id: exports ask for MODEL)"
    assert "parameters          86,848" in hisearch("doctor", "mine.json").out
