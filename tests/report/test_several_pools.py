"""Deployments of several pools in words."""

from __future__ import annotations

from hisearch.report.words.settings import NOT_USED, settings, used_settings
from hisearch.report.words.templating import text as words
from hisearch.search.model.trial import Trial
from tests.export.test_several import disaggregated, mixed
from tests.search.fakes import make_deployment, make_trial


def as_trial(deployment: object) -> Trial:
    return Trial(**(make_trial(0, 1.0, 1.0, 20.5).__dict__ | {"deployment": deployment}))


def test_a_sentence_names_each_pool_and_what_is_between_them() -> None:
    text = words("deployment", "sentence", as_trial(disaggregated("sglang")), "Qwen/Qwen3-32B")
    assert text.startswith(
        "Qwen/Qwen3-32B on SGLang, disaggregated prefill and decode: 9 replicas for prefill on 9 × h100-sxm in all"
    )
    assert "2 replicas for decode on 4 × h200 in all (tensor parallel 2)" in text
    assert "routed by cache_aware, to decode by power_of_two, over ib-ndr-400: $20.50 per hour" in text


def test_settings_are_listed_side_by_side_where_pools_differ() -> None:
    values = settings(disaggregated("vllm"))
    assert values["replicas"] == "9 + 2"
    assert values["accelerator"] == "h100-sxm + h200"
    assert values["engine"] == "vLLM"
    assert (values["pools"], values["decode router"], values["fabric"]) == (
        "disaggregated prefill and decode", "power_of_two", "ib-ndr-400",
    )  # fmt: skip
    values = used_settings(mixed("sglang"))
    assert (values["pools"], values["router"], values["tensor parallel"]) == (
        "unequal workers",
        "power_of_two",
        "1 + 4",
    )
    assert "fabric" not in values


def test_every_deployment_has_the_same_settings() -> None:
    single_pool = settings(make_deployment())
    assert list(single_pool) == list(settings(disaggregated("sglang"))) == list(settings(mixed("trtllm")))
    assert single_pool["pools"] == single_pool["fabric"] == single_pool["decode router"] == NOT_USED
