"""Small files with the names that commands on the pages use: files a reader is assumed to have."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from hisearch.api.deployments.deployment import plan_deployment
from hisearch.api.studies.stored_run import load_run
from hisearch.specs.documents.catalogue import Catalogue
from hisearch.specs.documents.resolve import load_deployment
from hisearch.specs.machines.profile import CorrectionSpec
from hisearch.specs.workloads.workload import GeneratorSpec
from hisearch.traces.changes.merging import asking_for
from hisearch.traces.changes.ordering import in_arrival_order
from hisearch.traces.generate import generate_trace
from hisearch.traces.reading.canonical import write_trace
from hisearch.traces.trace import Trace
from hisearch.verify.prediction import Correction
from tests.api import test_measured_runs
from tests.calibrate import step_logs
from tests.calibrate.test_build import write_own_tables
from tests.docs.pages import PAGES, ROOT, blocks
from tests.latency.operator_folder import write_tables
from tests.traces.test_agent_form import counts, otlp, span
from tests.validate import recordings, test_batch, test_e2e, test_open_loop, test_silicon
from tests.verify.documents import measure, random_requests, served, write_guidellm, write_vllm

#: Options that name what a command writes.
OUTPUTS = {"-o", "--output", "--out", "--keep", "--profile", "--html", "--rows", "--requests", "--series"}
#: What a search of the reader's own study may simulate.
SIMULATIONS = 8
#: Requests of a reader's own trace.
_REQUESTS = 80
#: File names of documents on a page that are not called by the document's own name.
_CALLED = {"my-study.yaml": "my-chat"}


def provide(arguments: Sequence[str], runs: Callable[[Path], None]) -> None:
    """Make the files that a command reads, in the working directory, unless they exist.

    Args:
        arguments: the command's.
        runs: makes a run folder.
    """
    for before, word in zip(("", *arguments), arguments, strict=False):
        if before in OUTPUTS and not (before == "--profile" and arguments[0] == "validate"):
            continue
        name = word.rpartition("=")[2]
        path = Path(name)
        if path.exists() or any(Path().glob(name) if not path.is_absolute() else ()):
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.startswith("runs/"):
            runs(path)
        elif name.startswith("my-") and (text := _shown(_CALLED.get(name, path.stem))):
            path.write_text(text.replace("simulations: 400", f"simulations: {SIMULATIONS}"))
            provide([word for word in path.read_text().replace(",", " ").split() if word in _MAKERS], runs)
        elif before == "--measured":
            _measured(path, arguments[1])
        elif name in _MAKERS:
            _MAKERS[name](path)


def _measured(path: Path, target: str) -> None:
    """A benchmark of a run's deployment, or of one by name, whose decode is slow."""
    if Path(target).is_dir():
        _, _, table = measure(load_run(target), factors=CorrectionSpec(decode=1.5))
        write_guidellm(path, table)
    else:
        write_vllm(path, served(target, random_requests(_REQUESTS), Correction(decode=1.5)), rate=2.0)


def _shown(name: str) -> str:
    """The YAML document of that name on a page; "" where there is none."""
    texts = {block.text for page in PAGES for block in blocks(page, "yaml") if f"{{name: {name}}}" in block.text}
    return texts.pop() if len(texts) == 1 else ""


def _generated() -> Trace:
    spec = Catalogue().get("Workload", "chat-multiturn").spec.generator
    assert spec is not None
    return generate_trace(GeneratorSpec.model_validate(spec.model_dump() | {"requests": _REQUESTS, "duration_s": None}))


def _trace(path: Path) -> None:
    write_trace(in_arrival_order(_generated()), path)


def _mooncake(path: Path) -> None:
    rows = [
        {"timestamp": 500 * at, "input_length": 1200, "output_length": 20, "hash_ids": [0, at, at + 1]}
        for at in range(1, 40)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def _azure(path: Path) -> None:
    rows = [f"2023-11-16 18:{at // 60:02}:{at % 60:02}.000,{400 + at},{20 + at}" for at in range(120)]
    path.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]) + "\n")


def _spend_logs(path: Path) -> None:
    """LiteLLM's table, two turns of a session and another."""
    rows = [
        f"{at},2026-08-01T09:00:{at:02}Z,2026-08-01T09:00:{at + 2:02}Z,qwen3-32b,{800 + at},120,s{at % 20},success"
        for at in (0, 5, 20)
    ]
    head = "request_id,startTime,endTime,model,prompt_tokens,completion_tokens,session_id,status"
    path.write_text("\n".join([head, *rows]) + "\n")


def _spans(path: Path) -> None:
    """Spans of two agents that take turns, each with a LoRA adapter, and of a third without."""
    spans = [
        span(f"c{k}", "", 100 * k, 100 * k + 50, agent__name=model, request__model=model, **counts(400, 20))
        for k, model in enumerate(["planner", "writer", "qwen2.5-7b"] * 10)
    ]
    path.write_text(json.dumps(otlp(*spans)) + "\n")


def _own(path: Path) -> None:
    (table,) = blocks(ROOT / "docs" / "traces.md", "csv")
    path.write_text(table.text)


def _classes(path: Path) -> None:
    """Requests of two classes, a minute of them; some think."""
    rows = [f"{at / 2},{300 + 7 * at % 4000},{20 + at % 90},{at % 3 // 2},{at % 20}" for at in range(120)]
    path.write_text("\n".join(["ts,prompt,answer,class,reasoning", *rows]) + "\n")


def _adapters(path: Path) -> None:
    """Requests for three adapters and for the base model, a minute of them."""
    rows = [f"{at / 2},{300 + 7 * at % 4000},{20 + at % 90},{('', 'sql', 'law', 'chat')[at % 4]}" for at in range(120)]
    path.write_text("\n".join(["ts,prompt,answer,lora", *rows]) + "\n")


def _of_a_model(path: Path) -> None:
    """A trace whose requests name their model, to be merged with another's."""
    write_trace(in_arrival_order(asking_for(_generated(), "llama-3.1-8b")), path)


def _config(path: Path) -> None:
    """A config.json of the size of Qwen3-8B."""
    known = Catalogue().get("Model", "qwen3-8b").spec
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": known.hidden_size,
        "num_hidden_layers": known.layers,
        "num_attention_heads": known.attention_heads,
        "num_key_value_heads": known.kv_heads,
        "head_dim": known.head_dim,
        "intermediate_size": known.intermediate_size,
        "vocab_size": known.vocab_size,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "max_position_embeddings": known.max_context_tokens,
    }
    path.write_text(json.dumps(config))


def _deployment(path: Path) -> None:
    shutil.copy(ROOT / "studies/deployments/qwen3-32b-h100-tp2.yaml", path)


def _exportable_pools(path: Path) -> None:
    """The shipped space, with a policy for unequal workers that every engine's router has."""
    space = (ROOT / "spaces" / "pools.yaml").read_text()
    path.write_text(space.replace("    mixed: {}", "    mixed: {policies: [power_of_two]}"))


def _recordings(path: Path) -> None:
    for number, name in enumerate(("vllm", "sglang")):
        recordings.make(recordings.CASES[name], path.parent).write(path.parent / f"{number}.json.gz")


def _router_recordings(path: Path) -> None:
    events = [["send", 0, 0], ["send", 1, 1], ["finish", 0], ["send", 2, 0]]
    recording = {"policy": "round_robin", "settings": {}, "workers": 2, "lengths": [9, 9, 9], "events": events}
    (path.parent / "0.json").write_text(json.dumps(recording))


def _recording(path: Path) -> None:
    recordings.make(recordings.VLLM, path.parent).write(path)


def _constants(path: Path) -> None:
    test_e2e.write_constants(path)


def _served(path: Path) -> None:
    test_e2e.write_case(path, [test_e2e.request(at, 3.0 * at) for at in range(4)])


def _served_several(path: Path) -> None:
    for number in (1, 2):
        _served(path.parent / f"run-{number}")


def _open_loop(path: Path) -> None:
    test_open_loop.write_folder(path)


def _measured_runs(path: Path) -> None:
    path.mkdir()
    test_measured_runs.write_folder(path)


def _list_of_runs(path: Path) -> None:
    _measured_runs(Path("my-measurements"))
    Path("my-measurements/runs.yaml").rename(path)
    for deployment in Path("my-measurements").glob("*.yaml"):
        shutil.copy(deployment, path.parent)


def _batches(path: Path) -> None:
    path.parent.rmdir()
    test_batch.add_held_out(write_tables(path.parent.parent), 1.0)


def _silicon(path: Path) -> None:
    test_silicon.write(path, {}, {"id": "b", "concurrency": "4"}, {"id": "c", "tp": "8.0", "concurrency": "4"})


def _step_log(path: Path) -> None:
    plan = plan_deployment(load_deployment("qwen3-32b-h100-tp2", (), Catalogue())).pools[0].plan
    steps = step_logs.drawn_steps(240)
    step_logs.write_jsonl(path, steps, step_logs.timed(plan.costs.seconds, steps))


_MAKERS: dict[str, Callable[[Path], None]] = {
    "my-trace.jsonl.gz": _trace,
    "t.jsonl.gz": _trace,
    "chat.jsonl.gz": _trace,
    "small.jsonl": _of_a_model,
    "conversation_trace.jsonl.gz": _mooncake,
    "AzureLLMInferenceTrace_conv.csv": _azure,
    "spans.jsonl": _spans,
    "own.csv": _own,
    "gateway.csv": _classes,
    "lora.csv": _adapters,
    "spend-logs.csv": _spend_logs,
    "my-model/config.json": _config,
    "a.yaml": _deployment,
    "b.yaml": _deployment,
    "mine.yaml": _deployment,
    "pair.yaml": _deployment,
    "exportable-pools.yaml": _exportable_pools,
    "recordings/*.json.gz": _recordings,
    "router-recordings/*.json*": _router_recordings,
    "my-recording.json": _recording,
    "my-constants.yaml": _constants,
    "my-run": _served,
    "measured-runs/*": _served_several,
    "my-open-loop": _open_loop,
    "my-runs": _measured_runs,
    "my-list.yaml": _list_of_runs,
    "my-tables/tp1/attention.csv": _batches,
    "measured.csv": _silicon,
    "log.jsonl": _step_log,
    "measurements/": write_own_tables,
}
