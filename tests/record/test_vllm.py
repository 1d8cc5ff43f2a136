"""The clock and the refusals of vLLM's recorder, with a scheduler of a few lines in the engine's place."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from hisearch.record import vllm, vllm_offload
from hisearch.record.__main__ import main
from hisearch.record.cases import Case, CaseError, EngineError, finished_case


class FakeScheduler:
    """Whole prompts, first come first served, at most two requests; one token more for each step thereafter."""

    def __init__(self) -> None:
        self.requests: dict[str, Any] = {}

    def add_request(self, request: Any) -> None:
        self.requests[request.request_id] = request

    def has_requests(self) -> bool:
        return bool(self.requests)

    has_unfinished_requests = has_requests

    def schedule(self) -> Any:
        new = {}
        for request in list(self.requests.values())[:2]:
            known = request.num_prompt_tokens + request.in_flight + request.num_output_tokens
            if request.num_output_tokens + request.in_flight < request.max_tokens:
                new[request.request_id] = known - request.num_computed_tokens
                request.num_computed_tokens = known
                request.in_flight += 1
        return SimpleNamespace(num_scheduled_tokens=new, preempted_req_ids=None)

    def update_from_output(self, output: Any, sampled: Any) -> dict[int, Any]:
        results = []
        for name, tokens in zip(output.num_scheduled_tokens, sampled.sampled_token_ids, strict=True):
            if name in self.requests:
                request = self.requests[name]
                request.tokens += tokens
                request.num_output_tokens += 1
                request.num_tokens += 1
                request.in_flight -= 1
                ended = tokens[-1] == request.eos or request.num_output_tokens == request.max_tokens
                if ended:
                    del self.requests[name]
                reason = "stop" if ended else None
                results.append(SimpleNamespace(request_id=name, new_token_ids=tokens, finish_reason=reason))
        return {0: SimpleNamespace(outputs=results)}


def make_request(**given: Any) -> SimpleNamespace:
    prompt, parameters = len(given["prompt_token_ids"]), given["sampling_params"]
    return SimpleNamespace(
        request_id=given["request_id"], num_prompt_tokens=prompt, num_tokens=prompt, num_computed_tokens=0,
        num_output_tokens=0, in_flight=0, tokens=[], is_prefill_chunk=False, max_tokens=parameters.max_tokens,
        eos=getattr(parameters, "_eos_token_id", None),
    )  # fmt: skip


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A package ``vllm`` with what the recorder's clock uses of it."""
    engine = ModuleType("vllm")
    engine.__version__ = "0.33.0"  # type: ignore[attr-defined]
    contents = {
        "vllm.sampling_params": {"SamplingParams": SimpleNamespace},
        "vllm.v1.request": {"Request": make_request},
        "vllm.v1.outputs": {"ModelRunnerOutput": SimpleNamespace},
    }
    monkeypatch.setitem(sys.modules, "vllm", engine)
    monkeypatch.setitem(sys.modules, "vllm.v1", ModuleType("vllm.v1"))
    for name, attributes in contents.items():
        module = ModuleType(name)
        vars(module).update(attributes)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(vllm, "make_scheduler", lambda settings: (FakeScheduler(), None))
    vllm.version.cache_clear()
    yield engine
    vllm.version.cache_clear()


def case(rows: list[dict[str, Any]], **settings: Any) -> Case:
    config = {"max_num_seqs": 2, "max_tokens": 64, "num_blocks": 20, "block_size": 4} | settings
    return finished_case("some", config, rows, 4, "some.yaml")


def row(name: str, arrival_s: float, input_tokens: int, output_tokens: int, **more: Any) -> dict[str, Any]:
    return {
        "id": name, "arrival_s": arrival_s, "input_tokens": input_tokens, "output_tokens": output_tokens, **more,
    }  # fmt: skip


def test_synchronous_clock(fake: ModuleType) -> None:
    recording = vllm.record(case([row("a", 1.0, 10, 2), row("b", 1.001, 5, 1)], prefix=True, policy="priority"))
    first = 0.005 + 2e-4 + 55e-9
    second = 0.005 + 12e-5 + (11 + 15) * 1e-9
    assert recording["engine"] == "vllm 0.33.0 (v1 scheduler and KV cache manager, synchronous scheduling)"
    assert recording["config"] == {
        "max_num_seqs": 2, "max_tokens": 64, "num_blocks": 20, "block_size": 4, "policy": "priority",
    }  # fmt: skip
    assert recording["steps"] == [
        {"start_s": 1.0, "batch": [["a", 0, 10]], "preempted": []},
        {"start_s": round(1 + first, 9), "batch": [["a", 10, 1], ["b", 0, 5]], "preempted": []},
    ]
    assert recording["first_token_s"] == {"a": round(1 + first, 9), "b": round(1 + first + second, 9)}
    assert recording["finish_s"] == dict.fromkeys("ab", round(1 + first + second, 9))


def test_asynchronous_clock(fake: ModuleType) -> None:
    """Two batches are outstanding; one that ends early is in one more."""
    rows = [row("a", 1.0, 10, 1, max_output_tokens=9), row("b", 1.003, 5, 1)]
    recording = vllm.record(case(rows, async_scheduling=True))
    steps = [(step["scheduled_s"], step["start_s"], step["batch"]) for step in recording["steps"]]
    first, second = 1.005200055, round(1.005200055 + 0.005020011, 9)
    assert steps == [
        (1.0, 1.0, [["a", 0, 10]]),
        (1.0, first, [["a", 10, 1]]),
        (first, second, [["b", 0, 5]]),
    ]
    assert recording["finish_s"]["a"] == first


def test_ids_keep_their_type_in_batches(fake: ModuleType) -> None:
    recording = vllm.record(case([row("a", 0.0, 3, 1) | {"id": 12}]))
    assert recording["steps"][0]["batch"] == [[12, 0, 3]]
    assert list(recording["finish_s"]) == ["12"]


def test_a_request_that_never_fits(fake: ModuleType) -> None:
    with pytest.raises(CaseError, match=r"some.yaml: some: request a: .* never fit; expected at most 76"):
        vllm.record(case([row("a", 0.0, 70, 9)]))


@pytest.mark.parametrize("text", ["0.18.1", "0.34.0", "1.0"])
def test_versions_outside_the_range_are_refused(fake: ModuleType, text: str) -> None:
    fake.__version__ = text  # type: ignore[attr-defined]
    with pytest.raises(EngineError, match=f"vLLM {text} is installed; expected a version from 0.19 to 0.33"):
        vllm.version()


def test_an_engine_that_is_not_installed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    vllm.version.cache_clear()
    assert main(["vllm", "--random", "1", "--out", str(tmp_path)]) == 2
    assert "run this with the Python of an environment that has vLLM" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_offload_is_checked(fake: ModuleType) -> None:
    offload = {"capacity_tokens": 400, "to_host": [0.0, 1e-6], "to_device": [0.0, 1e-6]}
    assert vllm_offload.checked(offload)["eviction"] == "lru"
    with pytest.raises(CaseError, match="offload: evict: unknown key"):
        vllm_offload.checked(offload | {"evict": "arc"})
    with pytest.raises(CaseError, match="offload: to_device: missing"):
        vllm_offload.checked({"capacity_tokens": 400, "to_host": [0.0, 1e-6]})
    fake.__version__ = "0.19.1"
    with pytest.raises(CaseError, match="synchronous scheduling alone"):
        vllm.record(case([row("a", 0.0, 7, 2)], offload=offload, async_scheduling=True))


def test_copies_run_one_after_another() -> None:
    worker = vllm_offload.Worker.__new__(vllm_offload.Worker)
    worker.now_s = 1.0
    worker.device_free_s = 1.25
    to_host = vllm_offload._Stream(worker, [0.5, 0.01], 16)
    to_device = vllm_offload._Stream(worker, [0.5, 0.01], 16)
    side = SimpleNamespace(block_ids=[3, 4])
    handlers = vllm_offload._Handler(to_host, 0), vllm_offload._Handler(to_device, 1)
    for handler, sides in zip(handlers, ((side, None), (None, side)), strict=True):
        for job in (1, 2):
            handler.transfer_async(job, sides)
    assert to_host.jobs == [(1, pytest.approx(2.07)), (2, pytest.approx(2.89))]  # behind the step
    assert to_device.jobs == [(1, pytest.approx(1.82)), (2, pytest.approx(2.64))]
    assert to_host.tokens == 64
    to_device.wait({1})
    assert worker.now_s == pytest.approx(1.82)
    copier = vllm_offload._Copier(to_host, to_device)
    copier.submit_load(3, None, side)
    assert to_device.jobs[-1] == (3, pytest.approx(3.46))
    copier.wait({2})
    assert worker.now_s == pytest.approx(2.89)
    assert sorted(to_host.ended() + to_device.ended()) == [1, 1, 2, 2]
