"""Choices of cache tiers: each gives a pool, can be read back from it, and is counted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, get_args

import pytest

from hisearch.search.evaluate.runner import TrialRunner
from hisearch.search.model.deployments import describe, format_tiers, parameters_of, with_cache
from hisearch.search.model.tier_choices import NotOffered, TierChoice, TierChoices
from hisearch.search.stages.cache import count_settings, search_cache
from hisearch.search.stages.execution import search_execution
from hisearch.search.stages.routing import search_routing
from hisearch.specs.base import EngineName
from hisearch.specs.deployments.deployment import PoolSpec
from hisearch.specs.deployments.tiers import MovementSpec
from hisearch.specs.studies.search_space import CacheSpace
from tests.search.fakes import FakeEvaluator, make_deployment, make_problem, make_trial, tier_gib

ENGINES: tuple[EngineName, ...] = get_args(EngineName)
DRAM = {"media": ["ddr5"], "gib": [0, 64, 256]}
DISK = {"media": ["nvme-gen4", "nvme-gen5"], "gib": [0, 500, 4000], "ttl_s": [None, 3600]}
SPACES: dict[str, dict[str, Any]] = {
    "nothing": {"tiers": []},
    "none": {"tiers": [{"media": ["ddr5"], "gib": [0]}]},
    "usual": {},
    "always": {"tiers": [{"media": ["ddr5"], "gib": {"low": 64, "high": 256}, "eviction": ["slru", "lru", "lfu"]}]},
    "two": {"tiers": [DRAM, DISK]},
    "movement": {
        "tiers": [DRAM, DISK],
        "movement": {
            "write_policy": ["write_through", "write_back"],
            "prefetch": ["best_effort", "timeout"],
            "prefetch_threshold_tokens": [256, 1024],
        },
    },
    "kv_connectors": {
        "tiers": [DRAM, {**DISK, "scope": ["worker"]}, {"media": ["rdma-pool"], "gib": [1000]}],
        "movement": {
            "kv_connectors": ["lmcache", "hicache", "offload"],
            "write_policy": ["write_back", "write_through"],
        },
    },
    "chain": {
        "tiers": [DRAM, {"media": ["nvme-gen4"], "gib": [0, 500]}, {"media": ["rdma-pool"], "gib": [0, 1000]}],
        "movement": {"hierarchy": ["exclusive", "inclusive"], "prefetch": ["timeout", "best_effort"]},
    },
    "lmcache": {"tiers": [DRAM], "movement": {"kv_connectors": ["lmcache"]}},
}
CHOICES = [(space, engine) for space in SPACES for engine in ENGINES]


def choices_of(space: str, engine: EngineName) -> TierChoices:
    return TierChoices(CacheSpace.model_validate(SPACES[space]), engine, {"ddr5": "worker", "nvme-gen4": "node"})


class Script:
    """Picks the options at the given indices, then always the first; remembers how many options there were."""

    def __init__(self, places: list[int]) -> None:
        self.places, self.widths = places, list[int]()

    def __call__(self, name: str, options: Sequence[Any]) -> Any:
        if len(self.widths) == len(self.places):
            self.places.append(0)
        self.widths.append(len(options))
        return options[self.places[len(self.widths) - 1]]


def every(choices: TierChoices) -> Iterator[TierChoice]:
    """All choices, by answering with every option in turn."""
    places: list[int] = []
    while True:
        script = Script(places)
        yield choices.choose(script)
        while places and places[-1] + 1 == script.widths[len(places) - 1]:
            places.pop()
        if not places:
            return
        places[-1] += 1


def pool_with(choice: TierChoice, engine: EngineName) -> PoolSpec:
    return with_cache(make_deployment(engine=engine), memory_fraction=0.9, choice=choice).pool


@pytest.mark.parametrize(("space", "engine"), CHOICES)
def test_every_choice_is_a_pool_s_and_is_found_again(space: str, engine: EngineName) -> None:
    choices = choices_of(space, engine)
    all_choices = list(every(choices))
    pools = [pool_with(choice, engine) for choice in all_choices]
    assert len({pool.model_dump_json() for pool in pools}) == len(all_choices) == choices.count()
    for choice, pool in zip(all_choices, pools, strict=True):
        made = {decision.name: decision.value for decision in choices.decisions_of(pool)}
        assert choices.choose(lambda name, options, made=made: made[name]) == choice


@pytest.mark.parametrize(("space", "engine"), CHOICES)
def test_neighbours_differ_in_one_decision(space: str, engine: EngineName) -> None:
    choices = choices_of(space, engine)
    for choice in list(every(choices))[::7]:
        pool = pool_with(choice, engine)
        ours = {decision.name: decision.value for decision in choices.decisions_of(pool)}
        for other in choices.neighbours(pool):
            theirs = {decision.name: decision.value for decision in choices.decisions_of(pool_with(other, engine))}
            differing = [name for name in ours if name in theirs and ours[name] != theirs[name]]
            if "kv_connector" not in differing:
                assert len(differing) == 1, (ours, theirs)


def test_sizes_move_by_one_step_or_to_none() -> None:
    space = CacheSpace.model_validate({"tiers": [{"media": ["ddr5"], "gib": [0, 64, 128, 256, 512]}]})
    choices = TierChoices(space, "vllm", {})

    def adjacent_sizes(gib: float) -> list[float]:
        at = pool_with(choices.choose(lambda name, options: gib if name == "tier_1_gib" else options[0]), "vllm")
        return [sum(tier.gib for tier in other.tiers) for other in choices.neighbours(at)]

    assert adjacent_sizes(256) == [0, 128, 512]
    assert adjacent_sizes(64) == [0, 128]
    assert adjacent_sizes(512) == [0, 256]
    assert adjacent_sizes(0) == [64]


def test_the_smallest_tiers_come_first() -> None:
    ordered = choices_of("movement", "sglang").smallest_first()
    assert [[tier.gib for tier in choice.tiers] for choice in ordered] == [[], [64], [256]]
    ordered = choices_of("kv_connectors", "vllm").smallest_first()
    assert [[tier.gib for tier in choice.tiers] for choice in ordered] == [[], [64], [256]]
    assert [len(choice.tiers) for choice in choices_of("nothing", "vllm").smallest_first()] == [0]


def test_the_largest_tiers_come_first_nearer_ones_before_all() -> None:
    ordered = [[tier.gib for tier in choice.tiers] for choice in choices_of("two", "sglang").largest_first()]
    assert ordered == [[256, 4000], [256, 500], [256], [64, 4000], [64, 500], [64]]
    assert list(choices_of("nothing", "vllm").largest_first()) == []
    assert list(choices_of("none", "vllm").largest_first()) == []


def test_an_engine_is_asked_for_what_it_has() -> None:
    def decision_names(space: str, engine: EngineName) -> list[str]:
        names: list[str] = []

        def ask(name: str, options: Sequence[Any]) -> Any:
            names.append(name)
            return options[-1]

        choices_of(space, engine).choose(ask)
        return [name for name in names if not name.startswith("tier_")]

    assert decision_names("movement", "sglang") == [
        "kv_connector",
        "write_policy",
        "prefetch",
        "prefetch_threshold_tokens",
        "eviction",
    ]
    assert decision_names("movement", "vllm") == ["kv_connector"]
    assert decision_names("usual", "sglang") == ["kv_connector", "write_policy", "eviction"]
    assert decision_names("none", "sglang") == []
    choice = choices_of("movement", "trtllm").choose(lambda name, options: options[-1])
    assert [tier.gib for tier in choice.tiers] == [256]
    assert choices_of("always", "vllm").choose(lambda name, options: options[-1]).tiers[0].eviction == "lru"


@pytest.mark.parametrize(
    ("space", "engine", "kv_connectors"),
    [
        ("nothing", "vllm", (None,)),
        ("none", "sglang", (None,)),
        ("usual", "sglang", (None, "hicache")),
        ("usual", "vllm", (None, "offload")),
        ("always", "trtllm", ("offload",)),
        ("kv_connectors", "vllm", (None, "lmcache", "offload")),
        ("kv_connectors", "sglang", (None, "hicache")),
        ("lmcache", "sglang", (None, "hicache")),
    ],
)
def test_who_may_move_kv(space: str, engine: EngineName, kv_connectors: tuple[str | None, ...]) -> None:
    assert choices_of(space, engine).possible_kv_connectors == kv_connectors


@pytest.mark.parametrize(("engine", "lifetimes"), [("sglang", {2: (None, 60)}), ("vllm", {})])
def test_lifetimes_are_searched_where_they_are_simulated(
    engine: EngineName, lifetimes: dict[int, tuple[float | None, ...]]
) -> None:
    """In the stores behind SGLang's host tier, and nowhere else."""
    tiers = [DRAM | {"gib": [64], "ttl_s": [None, 60]}, DISK | {"gib": [500], "ttl_s": [None, 60]}]
    space = CacheSpace.model_validate({"tiers": tiers, "movement": {"kv_connectors": ["lmcache"]}})
    choices, searched = TierChoices(space, engine, {}), {}

    def ask(name: str, options: Sequence[Any]) -> Any:
        searched[name] = tuple(options)
        return options[0]

    choices.choose(ask)
    for number in (1, 2):
        assert searched[f"tier_{number}_ttl_s"] == lifetimes.get(number, (None,))


def test_other_tiers_are_not_of_the_space() -> None:
    choices = choices_of("two", "sglang")
    tier = {"medium": "ddr5", "gib": 64, "scope": "worker"}
    for fields in (
        {"tiers": [{**tier, "gib": 65}]},
        {"tiers": [{**tier, "medium": "cxl-dram"}]},
        {"tiers": [{**tier, "scope": None}]},
        {"tiers": [tier], "movement": {"write_policy": "write_back"}},
        {"tiers": [tier], "movement": {"load_back_tokens": 20}},
        {"tiers": [tier], "movement": {"kv_connector": "lmcache"}},
    ):
        pool = PoolSpec.model_validate(make_deployment().pool.model_dump() | fields)
        with pytest.raises(NotOffered):
            choices.decisions_of(pool)
        assert list(choices.neighbours(pool)) == []
    named = PoolSpec.model_validate(
        make_deployment().pool.model_dump() | {"tiers": [tier], "movement": {"kv_connector": "hicache"}}
    )
    assert choices.decisions_of(named)


def test_parameters_and_words_of_tiers() -> None:
    choice = choices_of("movement", "sglang").choose(lambda name, options: options[-1])
    deployment = with_cache(make_deployment(), memory_fraction=0.9, choice=choice)
    parameters = parameters_of(deployment)
    assert {name: value for name, value in parameters.items() if name.startswith("tier_")} == {
        "tier_1_gib": 256, "tier_1_medium": "ddr5", "tier_1_scope": "worker", "tier_1_eviction": "lru",
        "tier_2_gib": 4000, "tier_2_medium": "nvme-gen5", "tier_2_eviction": "lru", "tier_2_ttl_s": 3600,
    }  # fmt: skip
    assert (parameters["kv_connector"], parameters["write_policy"], parameters["prefetch"]) == (
        "hicache", "write_back", "timeout",
    )  # fmt: skip
    words = "256 GiB ddr5 per worker, 4,000 GiB nvme-gen5, HiCache write-back"
    assert format_tiers(deployment.pool) == words
    assert describe(deployment).endswith(f" · {words}")
    without = make_deployment()
    assert parameters_of(without)["tier_1_gib"] == 0
    assert "kv_connector" not in parameters_of(without)
    assert format_tiers(without.pool) == ""


def test_settings_are_counted_without_listing_them() -> None:
    problem = make_problem()
    low, high = problem.space.cache.memory_fraction
    sglang, vllm = make_deployment(engine="sglang"), make_deployment(engine="vllm")
    steps = round((high - low) * 100) + 1
    # SGLang: none, or two sizes under lru or lfu; vLLM: three sizes.
    assert count_settings(problem, [sglang, vllm, sglang], []) == (steps * 5 + steps * 3, 0)
    tried = [make_trial(0, 1, 1, 1), make_trial(1, 1, 1, 1), make_trial(2, 1, 1, 1, slice_fraction=0.3, engine="vllm")]
    assert count_settings(problem, [sglang], tried) == (steps * 5, 1)
    assert count_settings(problem, [vllm], tried) == (steps * 3, 0)


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_the_sampler_fills_several_tiers(engine: EngineName) -> None:
    problem = make_problem(simulations=90)
    cache = CacheSpace.model_validate(SPACES["kv_connectors"] | {"eviction": ["lru", "lfu"]})
    execution = problem.space.execution.model_copy(update={"engines": [engine]})
    space = problem.space.model_copy(update={"cache": cache, "execution": execution})
    problem = type(problem)(**{**vars(problem), "space": space})
    runner = TrialRunner(FakeEvaluator(), problem.budget, workers=1)
    search_routing(problem, search_execution(problem, keep=4).kept, runner, until=40)
    before = runner.simulations
    search_cache(problem, runner, until=90)
    pools = [trial.deployment.pool for trial in runner.trials[before:]]
    assert {len(pool.tiers) for pool in pools} >= {0, 1, 3}
    # LMCache under SGLang is not simulated.
    assert {pool.kv_connector for pool in pools if pool.tiers} == (
        {"hicache"} if engine == "sglang" else {"lmcache", "offload"}
    )
    assert len({tier_gib(pool) for pool in pools}) > 3
    choices = problem.tier_choices(engine)
    for pool in pools:
        assert choices.decisions_of(pool)
        assert pool.movement == MovementSpec() or pool.tiers
