"""The exported folder: scripts that bash accepts and that start what the README says."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from hisearch.export.context import ExportContext
from hisearch.specs.deployments.deployment import DeploymentSpec
from tests.export.conftest import export_all, make_accelerator, make_deployment, make_model

STUB = """#!/bin/bash
printf '%s|%s|' "$(basename "$0")" "${CUDA_VISIBLE_DEVICES:-}"
printf '<%s>' "$@"
printf '\\n'
"""


@pytest.fixture
def export(build_deployment: Any, build_model: Any, build_accelerator: Any, tmp_path: Path) -> Any:
    def run(*, model: dict[str, Any] | None = None, accelerators_per_host: int = 8, **changes: Any) -> Path:
        out = tmp_path / "out" / "recommended"
        export_all(
            build_deployment(**changes), build_model(**(model or {})), build_accelerator(), out, accelerators_per_host
        )
        return out

    return run


def call(script: Path, *arguments: str, stubs: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a script with the engines' commands replaced by a program that prints its arguments."""
    stubs.mkdir(exist_ok=True)
    for name in ("python", "vllm", "trtllm-serve"):
        (stubs / name).write_text(STUB)
        (stubs / name).chmod(0o755)
    kept = {"PATH": f"{stubs}{os.pathsep}{os.environ['PATH']}"}
    return subprocess.run(
        [str(script), *arguments],
        capture_output=True,
        text=True,
        env=kept | environment,
        cwd=stubs,
        timeout=20,
        check=False,
    )


@pytest.mark.parametrize("engine", ["sglang", "vllm", "trtllm"])
@pytest.mark.parametrize("replicas", [1, 3])
def test_files_and_their_syntax(export: Any, tmp_path: Path, engine: str, replicas: int) -> None:
    out = export(engine={"name": engine}, pool={"replicas": replicas})
    other = {"sglang": "vllm", "vllm": "sglang", "trtllm": "vllm"}[engine]
    options = {"out/recommended/trtllm/llm_api_options.yaml"} if engine == "trtllm" else set()
    everything = {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()}
    if engine == "trtllm":
        options |= {f"out/recommended/{name}" for name in ("compose/llm_api_options.yaml", "llm-d/options.yaml")}
    manifests = ("compose/compose.yaml", "kubernetes/manifests.yaml", "llm-d/values.yaml", "dynamo/graph.yaml")
    options |= {f"out/recommended/{name}" for name in manifests}
    options |= {f"out/recommended/{name.split('/')[0]}/README.md" for name in manifests}
    assert everything == options | {
        "out/recommended/README.md",
        "out/recommended/deployment.yaml",
        "out/recommended/export.json",
        f"out/recommended/{engine}/run.sh",
        f"out/recommended/alternatives/{other}/run.sh",
    }
    for script in out.rglob("run.sh"):
        subprocess.run(["bash", "-n", str(script)], check=True)
        assert os.access(script, os.X_OK)
        assert "set -euo pipefail" in script.read_text()
    assert "NOT SIMULATED" in (out / "alternatives" / other / "run.sh").read_text()
    assert "NOT SIMULATED" not in (out / engine / "run.sh").read_text()
    assert "not simulated" in (out / "README.md").read_text()


def test_yaml_is_the_deployment(export: Any, build_deployment: Any) -> None:
    document = yaml.safe_load((export() / "deployment.yaml").read_text())
    assert document["kind"] == "Deployment"
    assert DeploymentSpec.model_validate(document["spec"]) == build_deployment()


def test_a_replica_starts_with_its_devices_port_and_flags(export: Any, tmp_path: Path) -> None:
    script = export(pool={"tensor_parallel": 4}) / "sglang" / "run.sh"
    done = call(script, "replica", "1", stubs=tmp_path / "stubs")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("python|4,5,6,7|<-m><sglang.launch_server><--model-path><Qwen/Qwen3-32B>")
    assert done.stdout.endswith("<--host><0.0.0.0><--port><30002>\n")
    assert "<--max-total-tokens><400000>" in done.stdout


def test_further_arguments_go_to_the_engine(export: Any, tmp_path: Path) -> None:
    script = export(engine={"name": "vllm"}, pool={"tensor_parallel": 4}) / "vllm" / "run.sh"
    more = ("--load-format", "dummy", "--served-model-name", "two words")
    for unit in ("replica", "host"):
        done = call(script, unit, "1", *more, stubs=tmp_path / "stubs")
        assert done.stdout.endswith("><--load-format><dummy><--served-model-name><two words>\n"), done.stderr
        assert "<--port><800" in done.stdout


def test_trtllm_is_given_its_options_file(export: Any, tmp_path: Path) -> None:
    folder = export(engine={"name": "trtllm"}, pool={"tensor_parallel": 4}) / "trtllm"
    done = call(folder / "run.sh", "replica", "1", stubs=tmp_path / "stubs")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("trtllm-serve|4,5,6,7|<Qwen/Qwen3-32B><--backend><pytorch><--tp_size><4>")
    assert f"<--extra_llm_api_options><{folder / 'llm_api_options.yaml'}>" in done.stdout
    assert done.stdout.endswith("<--host><0.0.0.0><--port><8002>\n")
    assert yaml.safe_load((folder / "llm_api_options.yaml").read_text())["kv_cache_config"]["max_tokens"] == 400_000


def test_a_host_starts_all_of_its_replicas(export: Any, tmp_path: Path) -> None:
    script = export(engine={"name": "vllm"}, pool={"tensor_parallel": 4}) / "vllm" / "run.sh"
    done = call(script, "host", "1", stubs=tmp_path / "stubs", MODEL="/models/mine")
    assert done.stdout.startswith("vllm|0,1,2,3|<serve></models/mine>")
    assert done.stdout.count("\n") == 1
    refused = call(script, "host", "2", stubs=tmp_path / "stubs")
    assert refused.returncode == 2
    assert "no host 2" in refused.stderr


def test_the_router_reaches_every_replica(export: Any, tmp_path: Path) -> None:
    script = export(pool={"tensor_parallel": 4}) / "sglang" / "run.sh"
    missing = call(script, "router", stubs=tmp_path / "stubs", HOST_0="10.0.0.1")
    assert missing.returncode != 0
    assert "set HOST_1" in missing.stderr
    done = call(script, "router", stubs=tmp_path / "stubs", HOST_0="10.0.0.1", HOST_1="10.0.0.2")
    assert "<http://10.0.0.1:30001><http://10.0.0.1:30002><http://10.0.0.2:30003>" in done.stdout
    assert "<--policy><cache_aware><--cache-threshold><0.3>" in done.stdout
    assert done.stdout.endswith("<--port><30000>\n")


def test_hosts_are_numbered_behind_those_of_other_models(tmp_path: Path) -> None:
    context, stubs = ExportContext(first_host=2), tmp_path / "stubs"
    for width, hosts in ((2, [2]), (4, [2, 3])):
        out = tmp_path / f"tp{width}"
        export_all(make_deployment(pool={"tensor_parallel": width}), make_model(), make_accelerator(), out, 8,
                   context=context)  # fmt: skip
        script = out / "sglang" / "run.sh"
        assert call(script, "host", "2", stubs=stubs).stdout.startswith("python|")
        refused = call(script, "host", "0", stubs=stubs)
        assert refused.returncode == 2
        assert f"no host 0; known: {' to '.join(map(str, hosts))}" in refused.stderr
        addresses = {f"HOST_{host}": f"10.0.0.{host}" for host in hosts}
        assert "<http://10.0.0.2:30001>" in call(script, "router", stubs=stubs, **addresses).stdout
    assert "<http://127.0.0.1:30001>" in call(tmp_path / "tp2/sglang/run.sh", "router", stubs=stubs).stdout
    assert "host-3" in (tmp_path / "tp4/compose/compose.yaml").read_text()


def test_one_replica_has_no_router(export: Any, tmp_path: Path) -> None:
    out = export(pool={"replicas": 1})
    assert "sglang_router" not in (out / "sglang" / "run.sh").read_text()
    assert call(out / "sglang" / "run.sh", "router", stubs=tmp_path / "stubs").returncode == 2
    assert call(out / "sglang" / "run.sh", "replica", "0", stubs=tmp_path / "stubs").stdout.endswith("<30000>\n")


@pytest.mark.parametrize(
    "name", ["$(touch owned)", "a b'c\"d`e`", "x;touch owned", "x}\ntouch owned\n#", "--flag", "€{"]
)
def test_hostile_names_stay_words(export: Any, tmp_path: Path, name: str) -> None:
    out = export(model={"huggingface_id": f"{name}/x"}, pool={"accelerator": name})
    done = call(out / "sglang" / "run.sh", "replica", "0", stubs=tmp_path / "stubs")
    assert f"<--model-path><{name}/x>" in done.stdout, done.stderr
    assert not list(tmp_path.rglob("owned"))
    for script in out.rglob("run.sh"):
        subprocess.run(["bash", "-n", str(script)], check=True)


def test_other_weights_are_asked_for(export: Any, tmp_path: Path) -> None:
    out = export(pool={"weight_dtype": "int4"})
    refused = call(out / "sglang" / "run.sh", "replica", "0", stubs=tmp_path / "stubs")
    assert refused.returncode != 0
    assert "checkpoint with int4 weights" in refused.stderr
    assert "checkpoint with int4 weights" in (out / "README.md").read_text()


def test_a_host_tier_that_sglang_refuses_is_named(export: Any) -> None:
    # 8 kv heads x 128 x 2 x 64 layers x 2 bytes / 2 ranks = 131,072 bytes a token; 34 GB hold 259,399 tokens.
    def readme(gib: int, version: str) -> str:
        folder = export(engine={"version": version}, pool={"tiers": [{"medium": "ddr5", "gib": gib}]})
        return str((folder / "README.md").read_text())

    assert "34 GB per rank hold about 259,399 tokens" in readme(64, "0.5.9")
    assert "GB per rank" not in readme(256, "0.5.9")
    assert "GB per rank" not in readme(64, "0.5.23")


def test_an_alternative_that_cannot_be_written_is_explained(export: Any) -> None:
    out = export(pool={"kv_dtype": "fp4"})
    assert not (out / "alternatives").exists()
    assert "No script was written: vllm 0.33.0 has no KV cache format fp4." in (out / "README.md").read_text()


def test_weights_that_the_alternative_cannot_quantise_are_asked_for(export: Any) -> None:
    fits = (export(engine={"name": "vllm"}, pool={"weight_dtype": "fp8"}) / "README.md").read_text()
    assert "It needs a checkpoint" not in fits
    wide = {"intermediate_size": 102400}  # 224 GiB in bf16, a half of it on each of two ranks
    out = export(engine={"name": "vllm"}, pool={"weight_dtype": "fp8"}, model=wide)
    assert (
        "It needs a checkpoint with fp8 weights: SGLang loads bf16 weights in full" in (out / "README.md").read_text()
    )
    assert "set MODEL to a checkpoint" not in (out / "vllm" / "run.sh").read_text()
    assert "set MODEL to a checkpoint" in (out / "alternatives" / "sglang" / "run.sh").read_text()


def test_what_sglang_holds_while_it_quantises_is_said(export: Any) -> None:
    readme = (export(pool={"weight_dtype": "fp8"}) / "README.md").read_text()
    assert "SGLang loads bf16 weights in full before it quantises them to fp8: 30.5 GiB on each rank" in readme


def test_the_readme_shows_a_command_that_is_complete(export: Any) -> None:
    assert "\nhisearch simulate deployment.yaml --trace chat-multiturn\n" in (export() / "README.md").read_text()


CURL = """#!/bin/bash
printf '%s\\n' "$*" >> asked
[[ "$*" != *"$REFUSES"* ]]
"""


def check(
    out: Path, stubs: Path, refuses: str, **environment: str
) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """``run.sh check`` with a curl that fails for addresses containing ``refuses``. Returns the result and the URLs."""
    stubs.mkdir(exist_ok=True)
    (stubs / "curl").write_text(CURL)
    (stubs / "curl").chmod(0o755)
    (stubs / "asked").unlink(missing_ok=True)
    (script,) = out.glob("*/run.sh")
    ran = call(script, "check", stubs=stubs, REFUSES=refuses, **environment)
    requested = (stubs / "asked").read_text().splitlines()
    return ran, [line.split()[-1] for line in requested]


def test_check_asks_every_replica_and_for_a_first_completion(export: Any, tmp_path: Path) -> None:
    stubs = tmp_path / "stubs"
    out = export(pool={"replicas": 3, "tensor_parallel": 4})
    hosts = {"HOST_0": "10.0.0.1", "HOST_1": "10.0.0.2"}
    ran, requested = check(out, stubs, "nothing", **hosts, ROUTER="10.0.0.9")
    replicas = ["10.0.0.1:30001", "10.0.0.1:30002", "10.0.0.2:30003"]
    assert requested == [*(f"http://{replica}/health" for replica in replicas), "http://10.0.0.9:30000/v1/completions"]
    assert ran.returncode == 0, ran.stderr
    assert '"model": "Qwen/Qwen3-32B"' in (stubs / "asked").read_text()
    ran, requested = check(out, stubs, ":30002", **hosts)
    assert len(requested) == 4  # a silent replica hides no other
    assert ran.returncode == 1
    assert ran.stderr.splitlines() == ["no answer: http://10.0.0.1:30002/health"]
    unset, _ = check(out, stubs, "nothing", HOST_0="10.0.0.1")
    assert unset.returncode != 0
    assert "address of host 1" in unset.stderr


def test_check_of_one_replica(export: Any, tmp_path: Path) -> None:
    ran, requested = check(export(pool={"replicas": 1}, engine={"name": "vllm"}), tmp_path / "stubs", "nothing")
    assert ran.returncode == 0
    assert requested == ["http://127.0.0.1:8000/health", "http://127.0.0.1:8000/v1/completions"]


def test_a_number_that_there_is_not_names_those_that_there_are(export: Any, tmp_path: Path) -> None:
    out = export(pool={"replicas": 1})
    refused = call(out / "sglang/run.sh", "replica", "1", stubs=tmp_path / "stubs")
    assert refused.stderr.strip() == "no replica 1; known: 0"
    out = export(pool={"replicas": 3})
    assert "no replica 7; known: 0 to 2" in call(out / "sglang/run.sh", "replica", "7", stubs=tmp_path / "stubs").stderr


def test_idle_slots_are_said_with_what_is_paid(export: Any) -> None:
    text = (export(pool={"tensor_parallel": 2, "replicas": 5}) / "README.md").read_text()
    assert "2 hosts with 8 accelerator slots each. Idle: 6 of host 1." in text
    assert "is that of the 10 accelerators in use" in text
    assert "where whole hosts are paid for, it is that of 16" in text
    full = (export(pool={"tensor_parallel": 8, "replicas": 1}) / "README.md").read_text()
    assert "1 host with 8 accelerator slots. All are used." in full


def test_who_listens_unasked_is_said_everywhere(export: Any) -> None:
    out = export()
    for folder in ("", "compose/"):
        text = (out / f"{folder}README.md").read_text()
        assert f"the router listens on port 30000 of all addresses{'' if folder else ' (`LISTEN`)'}" in text
    single = (export(pool={"replicas": 1}) / "README.md").read_text()
    assert "Port 30000 asks nobody for authentication" in single
    for folder in ("kubernetes", "dynamo"):
        assert "a NetworkPolicy or a gateway has to keep others out" in (out / folder / "README.md").read_text()


def test_a_container_can_be_given_a_folder_of_weights(export: Any) -> None:
    out = export()
    text = (out / "compose/README.md").read_text()
    assert "`MODEL` (default `Qwen/Qwen3-32B`)" in text
    assert "with `WEIGHTS=/models` the folder `/models/mine` is `MODEL=/root/.cache/huggingface/mine`" in text
    volumes = yaml.safe_load((out / "compose/compose.yaml").read_text())["services"]["replica-0"]["volumes"]
    assert volumes == ["${WEIGHTS:-~/.cache/huggingface}:/root/.cache/huggingface"]
    for folder in ("compose", "kubernetes", "dynamo", "llm-d"):
        assert "about 62 GiB" in (out / folder / "README.md").read_text()
