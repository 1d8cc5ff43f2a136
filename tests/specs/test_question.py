"""Questions in a few numbers, and the studies made from them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hisearch.api.studies.study import Study
from hisearch.specs.documents.catalogue import Catalogue
from hisearch.specs.documents.checkpoints import checkpoints
from hisearch.specs.documents.from_question import Asked, study_from_question
from hisearch.specs.documents.question import USUAL, Question, QuestionError, parse_have, split_names
from hisearch.specs.documents.question_classes import parse_class
from hisearch.specs.documents.question_sample import MOST_REQUESTS
from hisearch.specs.documents.resolve import load_study
from hisearch.specs.errors import SpecError
from hisearch.specs.workloads.workload import GeneratorSpec
from hisearch.traces.generate import generate_trace
from hisearch.traces.trace import Trace

QUESTION = Question(model="llama-3.1-8b", slo="ttft p95 < 1s, tpot p95 < 50ms", input="1000", output="200", rate=5.0)


def asked(**changes: Any) -> Asked:
    return study_from_question(replace(QUESTION, **changes))


def generator(**changes: Any) -> GeneratorSpec:
    workload = asked(**changes).resolved.workload
    assert not isinstance(workload, Path)
    assert workload.spec.generator is not None
    return workload.spec.generator


def traffic(**changes: Any) -> Trace:
    return generate_trace(generator(**changes))


def test_the_study_states_what_was_asked() -> None:
    made = asked(gpu=("h200",), engine=("sglang",), weights=("fp8",), budget_usd=30.0, confidence=0.9, seed=7)
    study, space = made.resolved.study, made.resolved.space.spec
    assert made.resolved.name == "size-llama-3.1-8b"
    assert [(term.label, term.at_most_s) for term in made.resolved.slo.spec.terms] == [
        ("ttft_p95", 1.0), ("tpot_p95", 0.05),
    ]  # fmt: skip
    assert (space.execution.accelerators, space.execution.engines) == (["h200"], ["sglang"])
    assert space.execution.weight_dtypes == ["fp8"]
    assert study.limits_by_name["usd_per_hour"].at_most == 30.0
    assert (study.confidence.at_least, study.seed, study.objectives) == (0.9, 7, ["ttft_p95", "usd_per_hour"])
    assert "5 requests/s, Poisson; 1,000 tokens in, 200 out" in made.resolved.document.description


def test_formats_of_kv_are_searched_like_those_of_weights() -> None:
    made = asked(kv=("bf16", "fp8"), gpu=("h200",))
    assert made.resolved.space.spec.execution.kv_dtypes == ["bf16", "fp8"]
    assert "KV in bf16 and fp8" in made.resolved.document.description
    assert asked().resolved.space.spec.execution.kv_dtypes == ["bf16"]
    with pytest.raises(SpecError, match="kv: no format of KV 'fp9'"):
        asked(kv=("fp9",))


@pytest.mark.parametrize(
    ("changes", "offered"),
    [
        ({"turns": 4}, True),
        ({"shared": 2000}, True),
        ({"classes": tuple(parse_class(each) for each in ("chat: 60%; turns 5", "rest: 40%"))}, True),
        ({}, False),
        ({"turns": 4, "have": None}, False),
    ],
)
def test_host_memory_is_offered_where_kv_may_serve_again(changes: dict[str, Any], offered: bool) -> None:
    made = asked(**({"gpu": ("h200",), "have": ("h200", 8)} | changes))
    tiers = made.resolved.space.spec.cache.tiers
    assert [(tier.media, tier.sizes()) for tier in tiers] == [(["ddr5"], [0, 160, 320, 640, 1280])] * offered
    assert ("tiers of host memory" in made.resolved.document.description) == offered


@pytest.mark.parametrize(
    ("gpu", "fabric"),
    [
        ("h100-sxm", "nvlink4-switch"), ("a100-80gb", "nvlink4-switch"), ("mi300x", "nvlink4-switch"),
        ("b200", "nvlink5-switch"), ("mi355x", "nvlink5-switch"), ("h100-nvl", "roce-200"), ("l40s", "roce-200"),
    ],
)  # fmt: skip
def test_kv_moves_over_the_slowest_switch_that_the_accelerators_link_needs(gpu: str, fabric: str) -> None:
    space = asked(gpu=(gpu,), have=(gpu, 4)).resolved.space.spec
    assert space.pools.disaggregated is not None
    assert space.pools.disaggregated.fabrics == [fabric]


@pytest.mark.parametrize(
    ("model", "degrees"),
    [("deepseek-v3", [1, 2, 4, 8]), ("qwen3-30b-a3b", [1, 2]), ("qwen3-32b", [1]), ("gpt-oss-120b", [1])],
)
def test_ranks_share_kv_where_they_would_hold_copies(model: str, degrees: list[int]) -> None:
    execution = asked(model=model).resolved.space.spec.execution
    assert execution.decode_context_parallel == degrees
    assert asked(model=model, engine=("trtllm",)).resolved.space.spec.execution.decode_context_parallel == [1]


@pytest.mark.parametrize(
    ("model", "engine", "sets"),
    [
        ("deepseek-v3", "vllm", [1, 2, 4, 8]),
        ("deepseek-v3", "sglang", [1]),
        ("deepseek-v3.2", "sglang", [1, 2, 4, 8]),
        ("kimi-k2.5", "vllm", [1]),
        ("qwen3-30b-a3b", "sglang", [1]),
        ("deepseek-v3", "trtllm", [1]),
    ],
)
def test_ranks_share_prompts_of_models_with_mla(model: str, engine: str, sets: list[int]) -> None:
    assert asked(model=model, engine=(engine,)).resolved.space.spec.execution.prefill_context_parallel == sets


def test_its_text_is_read_from_any_folder_as_the_same_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = study_from_question(QUESTION, overrides=["spec.budget.simulations=5"])
    (tmp_path / "kept.yaml").write_text(made.text)
    monkeypatch.chdir(tmp_path)
    kept = load_study("kept.yaml")
    assert kept.study == made.resolved.study
    assert kept.study.budget.simulations == 5
    assert kept.document.description == made.resolved.document.description


def test_the_trace_has_the_rate_and_the_lengths() -> None:
    trace = traffic()
    assert len(trace.arrival_s) / np.ptp(trace.arrival_s) == pytest.approx(5.0, rel=0.1)
    assert trace.input_tokens.mean() == pytest.approx(1000, rel=0.05)
    assert trace.output_tokens.mean() == pytest.approx(200, rel=0.05)
    same = traffic(spread=0.0, input="1500")
    assert set(same.input_tokens.tolist()) == {1500}
    assert set(traffic(input="70 exactly").input_tokens.tolist()) == {70}


def test_bursts_vary_the_gaps() -> None:
    gaps = np.diff(traffic(burst=3.0).arrival_s)
    assert gaps.std() / gaps.mean() == pytest.approx(3.0, rel=0.25)


def test_turns_share_the_rate_and_grow_by_what_was_said() -> None:
    trace = traffic(turns=4, shared=1500, spread=0.0, rate=20.0)
    assert len(trace.arrival_s) / np.ptp(trace.arrival_s) == pytest.approx(20.0, rel=0.15)
    prompts = sorted(set(trace.input_tokens.tolist()))
    assert prompts == [2500, 3700, 4900, 6100]
    early = np.count_nonzero(trace.arrival_s < trace.arrival_s.max() / 4) / len(trace.arrival_s)
    assert early == pytest.approx(0.25, abs=0.05)


def test_thinking_comes_ahead_of_the_output_and_is_not_said_again() -> None:
    made = asked(thinking="1000 exactly", turns=3, spread=0.0)
    assert "1,000 new tokens in, 200 out (exactly), after 1,000 of thinking (exactly)" in made.question.describe()
    trace = traffic(thinking="1000 exactly", turns=3, spread=0.0)
    assert set(trace.thinking_tokens.tolist()) == {1000}
    assert set(trace.output_tokens.tolist()) == {1200}
    assert sorted(set(trace.input_tokens.tolist())) == [1000, 2200, 3400]
    assert not traffic().thinking_tokens.any()
    wait_s = asked(thinking="1000", slo="ttfo p95 < 8s").resolved.study.objectives[0]
    assert wait_s == "ttfo_p95"
    window = Question(**vars(QUESTION) | {"thinking": "130000"})
    with pytest.raises(QuestionError, match="more than the 131,072 of the model's window"):
        study_from_question(replace(window, input="1000", output="200"))


def test_users_wait_for_their_answers() -> None:
    trace = traffic(rate=None, concurrency=8)
    assert np.count_nonzero(trace.previous < 0) == 8


@pytest.mark.parametrize(
    ("changes", "requests"),
    [
        ({}, 2000),
        ({"slo": "ttft p99 < 1s, tpot p99 < 50ms"}, 5000),
        ({"slo": "ttft p99.9 < 1s"}, MOST_REQUESTS),
        ({"rate": 100.0}, 11_000),
        ({"rate": None, "concurrency": 100}, 4000),
    ],
)
def test_requests_suffice_for_the_percentile_and_the_stay(changes: dict[str, Any], requests: int) -> None:
    made = asked(**changes)
    assert generator(**changes).requests == requests
    assert made.requests.startswith(f"{requests:,} requests are simulated")
    assert not made.caution


def test_too_few_requests_are_said_to_be() -> None:
    assert "queues are still filling" in asked(rate=2000.0).caution
    assert "users begin at once" in asked(rate=None, concurrency=2000).caution


@pytest.mark.parametrize(
    "ref", ["llama-3.1-8b", "meta-llama/Llama-3.1-8B-Instruct", "META-LLAMA/llama-3.1-8b-instruct"]
)
def test_a_model_goes_by_its_name_or_its_hugging_face_id(ref: str) -> None:
    assert asked(model=ref).resolved.model_name == "llama-3.1-8b"


@pytest.mark.parametrize("ref", ["meta-llama/Llama-3.3-70B-Instruct", "llama-3.3-70b-instruct"])
def test_another_checkpoint_of_a_model_is_served_by_its_own_id(ref: str) -> None:
    made = asked(model=ref)
    assert made.resolved.model_name == "llama-3.1-70b"
    assert made.resolved.model.spec.huggingface_id == "meta-llama/Llama-3.3-70B-Instruct"
    assert "huggingface_id: meta-llama/Llama-3.3-70B-Instruct" in made.text


def test_no_two_models_have_the_same_checkpoint() -> None:
    ids = [each.huggingface_id.lower() for each in checkpoints(Catalogue())]
    assert len(ids) == len(set(ids))


def test_a_model_may_be_a_configuration_or_its_folder(tmp_path: Path) -> None:
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 16,
        "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 8192, "vocab_size": 128256,
        "max_position_embeddings": 8192, "torch_dtype": "bfloat16", "tie_word_embeddings": True,
    }  # fmt: skip
    folder = tmp_path / "small"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    for ref in (folder, folder / "config.json"):
        made = study_from_question(replace(QUESTION, model=str(ref)), catalogue=Catalogue(tmp_path))
        assert made.resolved.model.spec.layers == 16
        assert str(folder / "config.json") in made.text
    with pytest.raises(SpecError, match=r"turns: prompt and output of the last turn have 12,000 tokens on average"):
        study_from_question(replace(QUESTION, model=str(folder), turns=10))


def test_an_slo_may_be_named() -> None:
    made = asked(slo="interactive-chat")
    assert made.resolved.slo.name == "interactive-chat"
    assert "slo: interactive-chat" in made.text


REFUSED = [
    ({"model": "llama-4"}, "model", "no Model named 'llama-4'"),
    ({"model": "meta-llama/Llama-3.1-7B"}, "model", "did you mean 'meta-llama/Llama-3.1-70B'?"),
    ({"model": "acme/unheard-of-7b"}, "model", "name that file"),
    ({"model": "./no/config.json"}, "model", "no file at"),
    ({"slo": "ttft p95 = 1s"}, "slo", "expected <, <= or under, got '=' at character 10"),
    ({"slo": "interactive"}, "slo", "or write a phrase such as"),
    ({"slo": "./no.yaml"}, "slo", "no file at"),
    ({"input": "2k"}, "input", "expected a number of tokens"),
    ({"output": "0"}, "output", "expected 1 token or more"),
    ({"input": "200000"}, "input", "more than the 131,072 of the model's window"),
    ({"turns": 200}, "turns", "more than the 131,072 of the model's window"),
    ({"rate": None}, "rate", "or a concurrency instead"),
    ({"concurrency": 4}, "rate", "not both"),
    ({"rate": 0.0}, "rate", "expected requests per second above 0"),
    ({"rate": float("nan")}, "rate", "expected requests per second above 0"),
    ({"rate": None, "concurrency": 0}, "concurrency", "expected 1 to 100,000 users"),
    ({"rate": None, "concurrency": 4, "burst": 2.0}, "burst", "have no bursts"),
    ({"burst": 0.0}, "burst", "expected a coefficient of variation"),
    ({"turns": 0}, "turns", "expected 1 to 1,000 turns"),
    ({"shared": -1}, "shared", "expected 0 to"),
    ({"think_s": -1.0}, "think_s", "seconds"),
    ({"spread": -0.1}, "spread", "expected 0 (all alike) to 3"),
    ({"gpu": ("h101-sxm",)}, "gpu", "did you mean 'h100-sxm'?"),
    ({"gpu": ()}, "gpu", "names no accelerator"),
    ({"gpu": ("h200", "h200")}, "gpu", "names one twice"),
    ({"engine": ("vlm",)}, "engine", "did you mean 'vllm'?"),
    ({"weights": ("fp7",)}, "weights", "no format of weights 'fp7'"),
    ({"budget_usd": 0.0}, "budget_usd", "expected dollars per hour above 0"),
    ({"confidence": 90.0}, "confidence", "expected a probability above 0 and below 1"),
    ({"seed": -1}, "seed", "expected 0 to"),
]


def test_a_name_that_several_accelerators_share_is_the_usual_one() -> None:
    assert replace(QUESTION, gpu=("h100", "a100", "l40s")).gpu == ("h100-sxm", "a100-80gb", "l40s")
    assert replace(QUESTION, have=("h100", 8)).have == ("h100-sxm", 8)
    assert parse_have("h100:16,h200:8") == (("h100-sxm", 16), ("h200", 8))
    with pytest.raises(QuestionError, match="names one twice"):
        replace(QUESTION, gpu=("h100", "h100-sxm"))
    with pytest.raises(QuestionError, match="names one twice"):
        parse_have("h100:1,h100-sxm:1")
    assert set(USUAL.values()) <= set(Catalogue().names("Accelerator"))


@pytest.mark.parametrize(("changes", "part", "message"), REFUSED, ids=lambda value: str(value)[:40])
def test_what_cannot_be_used_is_refused_by_its_part(changes: dict[str, Any], part: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        asked(**changes)
    assert caught.value.key == part
    assert message in caught.value.message


def test_an_override_that_is_wrong_is_named() -> None:
    with pytest.raises(SpecError, match=r"--set spec\.budget\.simulations=0"):
        study_from_question(QUESTION, overrides=["spec.budget.simulations=0"])


def test_names_are_split() -> None:
    assert split_names("h200, l40s") == ("h200", "l40s")
    assert split_names(["h200,l40s", "b200"]) == ("h200", "l40s", "b200")
    assert split_names(None) == ()


CLASSES = (
    "chat: 80%; tenants 0,1",
    "batch: 20%; priority 1; tenant 2; input 4000; output 50; turns 3",
    "agents: rate 4",
)


def of_classes(**changes: Any) -> Trace:
    return traffic(classes=tuple(parse_class(each) for each in CLASSES), **({"rate": 20.0, "spread": 0.0} | changes))


def test_classes_have_their_share_of_the_requests_and_their_own_lengths() -> None:
    """Shares of requests, not of conversations: batch has three turns each."""
    trace = of_classes()
    batch, own = trace.priority == 1, (trace.priority == 0) & (trace.tenant == 0)
    span_s = np.ptp(trace.arrival_s)
    assert batch.sum() / span_s == pytest.approx(4.0, rel=0.15)
    assert len(batch) / span_s == pytest.approx(24.0, rel=0.1)
    assert set(trace.tenant[batch].tolist()) == {2}
    assert (trace.tenant == 1).sum() / span_s == pytest.approx(8.0, rel=0.15)
    assert own.sum() / span_s == pytest.approx(12.0, rel=0.15)
    assert sorted(set(trace.input_tokens[batch].tolist())) == [4000, 8050, 12100]
    assert set(trace.output_tokens[batch].tolist()) == {50}
    assert set(trace.input_tokens[~batch].tolist()) == {1000}


def test_users_are_of_classes_too() -> None:
    trace = traffic(rate=None, concurrency=16, classes=tuple(parse_class(each) for each in CLASSES[:2]))
    assert np.count_nonzero(trace.previous < 0) == 16
    assert (trace.priority == 1).mean() == pytest.approx(0.2, abs=0.04)


def test_a_class_of_few_requests_asks_for_a_longer_trace() -> None:
    made = asked(slo="ttft p95 < 1s, ttft p99 < 10s for priority 1", classes=(
        parse_class("chat: 75%"), parse_class("batch: 25%; priority 1"),
    ))  # fmt: skip
    assert made.requests.startswith("20,000 requests")
    assert "chat: 3.75 requests/s, Poisson; 1,000 tokens in" in made.question.describe()


def test_a_class_that_all_are_of_is_the_question_without_classes() -> None:
    """The same draws but for names of streams: lengths without a spread, arrivals of one process."""
    same, classed = traffic(spread=0.0), traffic(spread=0.0, classes=(parse_class("all: 100%"),))
    np.testing.assert_array_equal(same.arrival_s, classed.arrival_s)
    np.testing.assert_array_equal(same.input_tokens, classed.input_tokens)


@pytest.mark.parametrize(
    ("phrases", "message"),
    [
        (["batch"], "expected NAME: SHARE"),
        (["a: 50%; prioriti 1", "b: 50%"], "did you mean 'priority'?"),
        (["a: 50%; priority x", "b: 50%"], "a: expected a whole number such as 'priority 1'"),
        (["a: 50%; input 1; input 2", "b: 50%"], "a: input is given twice"),
        (["a: 50%", "b: 40%"], "shares add up to 90 %"),
        (["a: 150%"], "expected a share above 0"),
        (["a: 50%", "a: 50%"], "two have one name"),
        (["a: 100%; rate 2"], "a: expected a share such as 20%, or a rate instead"),
        (["a: 100%; burst 2"], "a: a burst goes with a rate of its own"),
        (["a: 100%; input 2k"], "input: expected a number of tokens"),
        (["a: 100%; input 200000"], "a: prompt and output of a request have 200,200 tokens"),
    ],
)
def test_a_class_that_cannot_be_used_is_refused(phrases: list[str], message: str) -> None:
    with pytest.raises(SpecError) as caught:
        asked(classes=tuple(parse_class(each) for each in phrases))
    assert caught.value.key == "classes"
    assert message in caught.value.message


def test_classes_with_rates_of_their_own_leave_no_rate_over() -> None:
    own = (parse_class("a: rate 2"), parse_class("b: rate 3; priority 1; burst 3"))
    assert asked(classes=own, rate=None).question.total_rate == 5.0
    with pytest.raises(QuestionError, match="every class has a rate of its own"):
        asked(classes=own)
    with pytest.raises(QuestionError, match="the largest rate is asked for; give a share"):
        asked(classes=(parse_class("a: 100%"), parse_class("b: rate 2")), have=("h100", 8))


def test_terms_about_a_class_that_is_not_asked_for_are_refused() -> None:
    made = asked(slo="ttft p95 < 1s for priority 3", classes=tuple(parse_class(each) for each in CLASSES))
    with pytest.raises(SpecError, match="no request of the workload has priority 3; it has 0 and 1"):
        Study(made.resolved).world()
