"""Section ``agents`` of a pool and of a space: sizes and times by hand, refusals, flags, choices."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from hisearch.export.engines.agents import notes
from hisearch.export.engines.flags import engine_flags
from hisearch.export.engines.launch import Launch
from hisearch.search.model.tier_choices import TierChoices
from hisearch.simulate import plan_worker
from hisearch.simulate.plans.agent_memory import AgentsRefused, adapter_elements
from hisearch.simulate.plans.tiers import TierRefused
from hisearch.specs.deployments.agent_memory import AdaptersSpec, AgentMemorySpec
from hisearch.specs.deployments.deployment import DeploymentSpec, PoolSpec
from hisearch.specs.deployments.tiers import TierSpec
from hisearch.specs.documents.catalogue import Catalogue
from hisearch.specs.errors import RenamedKeyWarning
from hisearch.specs.studies.search_space import CacheSpace, SearchSpaceSpec

CATALOGUE = Catalogue()
QWEN = CATALOGUE.get("Model", "qwen2.5-7b").spec


def pool(engine=None, tensor_parallel=1, tiers=(), **agents) -> PoolSpec:
    return PoolSpec.model_validate(
        {
            "accelerator": "h100-sxm", "engine": {"name": "sglang"} | (engine or {}), "tiers": list(tiers),
            "tensor_parallel": tensor_parallel, "agents": agents,
        }
    )  # fmt: skip


DRAM, NVME = TierSpec(medium="ddr5", gib=96), TierSpec(medium="nvme-gen4", gib=4000)


def plan(of: PoolSpec, model: str = "qwen2.5-7b"):
    accelerator = CATALOGUE.get("Accelerator", "h100-sxm").spec
    return plan_worker(
        of,
        model=CATALOGUE.get("Model", model).spec,
        accelerator=accelerator,
        host=CATALOGUE.get("Host", accelerator.host).spec,
        media={name: CATALOGUE.get("Medium", name).spec for name in ("ddr5", "nvme-gen4", "rdma-pool")},
        profile=CATALOGUE.get("LatencyProfile", "roofline").spec,
    )


def test_an_adapter_s_size_by_hand():
    # Per layer, for every unit of rank: inputs + outputs of each matrix. 28 query heads of 128, 4 KV heads.
    by_hand = 28 * ((3584 + 3584) * 2 + (3584 + 512) * 2 + (3584 + 18944) * 3)
    assert adapter_elements(QWEN, AdaptersSpec(rank=1), 1) == by_hand
    assert adapter_elements(QWEN, AdaptersSpec(rank=16), 1) == 16 * by_hand
    assert adapter_elements(QWEN, AdaptersSpec(rank=1, targets=["q"]), 4) == 28 * (3584 + 3584 // 4)


def test_slots_come_off_the_kv_pool_and_loads_take_the_link_s_time():
    plain = plan(PoolSpec(accelerator="h100-sxm", engine={"name": "sglang"}))
    slotted = plan(pool(adapters={"rank": 16}, slots=100, objects=[{"name": "index", "mib": 64, "per": "all"}]))
    adapter, index = slotted.agents.kinds
    page_bytes = plain.memory.kv_bytes_per_token_per_rank
    assert adapter.bytes_per_rank == 2 * adapter_elements(QWEN, AdaptersSpec(rank=16), 1)
    assert adapter.pages == -(-adapter.bytes_per_rank // page_bytes)
    assert adapter.load_s == pytest.approx(10e-6 + adapter.bytes_per_rank / 55e9)
    assert slotted.agents.pool_pages == 100 * adapter.pages + index.pages
    assert plain.kv_capacity_tokens - slotted.kv_capacity_tokens == slotted.agents.pool_pages
    shared = plan(pool(adapters={"rank": 16}))
    assert shared.kv_capacity_tokens == plain.kv_capacity_tokens
    assert shared.agents.pool_pages == 0


def test_a_tier_has_to_hold_more_than_the_kv_that_slots_leave():
    tier = TierSpec(medium="ddr5", gib=32)
    slotted = plan(pool(adapters={"rank": 64}, slots=125, tiers=[tier]))
    assert slotted.kv_capacity_tokens < slotted.tiers[0].capacity_tokens < slotted.memory.kv_capacity_tokens
    with pytest.raises(TierRefused, match="must exceed its device pool"):
        plan(pool(adapters={"rank": 64}, slots=5, tiers=[tier]))


@pytest.mark.parametrize(
    ("agents", "words"),
    [
        ({"adapters": {}, "slots": 4, "host": "tier"}, "no tier whose memory objects could share"),
        ({"host": "tier", "tiers": [TierSpec(medium="ddr5", gib=128)]}, "there are no objects"),
        ({"adapters": {}, "slots": 4, "host_gib": 8, "tiers": [DRAM, NVME]}, "host_gib: .* set host: tier"),
        ({"adapters": {}, "slots": 4, "host": "tier", "host_gib": 8, "tiers": [DRAM]}, "no second tier"),
    ],
)
def test_objects_share_a_tier_that_is_there(agents, words):
    with pytest.raises(ValidationError, match=words):
        pool(**agents)


def test_objects_in_a_tier_are_planned_so():
    tier = TierSpec(medium="ddr5", gib=128)
    assert plan(pool(adapters={}, slots=4, host="tier", tiers=[tier])).agents.in_tier
    assert any("--hicache-size" in note for note in notes(pool(adapters={}, slots=4, host="tier", tiers=[tier])))


def bounded(gib: float, *tiers: TierSpec, ranks: int = 1):
    return plan(pool(adapters={"rank": 64}, slots=32, host="tier", host_gib=gib, tiers=tiers, tensor_parallel=ranks))


@pytest.mark.parametrize("ranks", [1, 2])
def test_what_host_memory_lacks_takes_the_disk_s_time(ranks: int):
    medium = CATALOGUE.get("Medium", "nvme-gen4").spec
    agents = bounded(16, TierSpec(medium="ddr5", gib=192), NVME, ranks=ranks).agents
    (adapter,) = agents.kinds
    devices = -(-4000 * 2**30 // medium.capacity_bytes)
    seconds = medium.latency_s + ranks * adapter.bytes_per_rank / (devices * medium.read_bytes_per_s)
    assert adapter.read_s == pytest.approx(seconds)
    assert agents.disk_bytes_per_s == devices * medium.read_bytes_per_s
    page_bytes = bounded(16, TierSpec(medium="ddr5", gib=192), NVME, ranks=ranks).tiers[0].bytes_per_token
    assert agents.host_pages == int(16 * 2**30 / page_bytes)


def test_the_former_name_of_memory_of_their_own_is_read_with_a_note():
    with pytest.warns(RenamedKeyWarning, match="host: beside is called 'separate' now"):
        assert AgentMemorySpec(adapters={}, host="beside").host == "separate"


def test_host_memory_for_objects_holds_what_slots_do_and_its_disk_is_a_node_s():
    with pytest.raises(AgentsRefused, match=r"8 GiB are less than agents.slots take"):
        bounded(8, DRAM, NVME)
    with pytest.raises(AgentsRefused, match="a tier that several nodes share"):
        bounded(16, DRAM, TierSpec(medium="rdma-pool", gib=4000))


def test_sglang_gets_a_flag_for_the_adapters_in_host_memory():
    of = pool(adapters={"rank": 64}, slots=32, host="tier", host_gib=16, tiers=[DRAM, NVME])
    assert any("--max-loaded-loras to the adapters that 16 GiB hold" in note for note in notes(of))


def test_adapters_are_read_by_every_step():
    plain, adapted = plan(pool()), plan(pool(adapters={"rank": 64}))
    seconds = adapted.costs.seconds.host_per_sequence_s - plain.costs.seconds.host_per_sequence_s
    assert seconds == pytest.approx(adapted.agents.kinds[0].bytes_per_rank / (0.7 * 3.35e12))
    assert (adapted.costs.seconds.token_s[1:] > plain.costs.seconds.token_s[1:]).all()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"engine": {"name": "trtllm"}}, "simulated for the engines sglang and vllm, not trtllm"),
        ({"engine": {"name": "vllm"}, "adapters": {}}, "vLLM keeps adapters in a pool of their own; give slots"),
        ({"engine": {"name": "vllm"}, "tiers": [TierSpec(medium="ddr5", gib=128)]}, "for the engine sglang alone"),
        ({"engine": {"prefix_caching": False}}, "needs engine.prefix_caching"),
        ({"policy": "by_slot", "adapters": {}}, "by_slot is about adapters alone, in slots"),
        (
            {"policy": "by_slot", "adapters": {}, "slots": 4, "objects": [{"name": "index", "mib": 1}]},
            "by_slot is about adapters alone, in slots",
        ),
        (
            {"policy": "by_slot", "adapters": {}, "slots": 4, "engine": {"name": "vllm"}},
            "by_slot is SGLang's; vllm evicts adapters by last use",
        ),
        ({"engine": {"eviction": "fifo"}, "policy": "distance"}, "leave engine.eviction at lru"),
        ({"tiers": [TierSpec(medium="ddr5", gib=128)], "adapters": {}}, "a pool of their own; give slots"),
        ({"slots": 4}, "there are no objects"),
        ({"noise": 1.0}, "policy lru knows no distances"),
        ({"adapters": {"targets": ["x"]}}, "targets"),
    ],
)
def test_what_does_not_go_together_is_refused(changes, words):
    with pytest.raises(ValidationError, match=words):
        pool(**changes)


def test_deployments_in_which_objects_are_not_simulated_are_refused_by_key():
    agents = {"name": "a", "accelerator": "h100-sxm", "engine": {"name": "sglang"}, "agents": {"policy": "distance"}}
    plain = {"name": "b", "accelerator": "h100-sxm", "engine": {"name": "sglang"}}
    DeploymentSpec.model_validate({"model": "qwen2.5-7b", "pools": [agents]})
    with pytest.raises(ValidationError, match=r"pools\.1\.agents: .* deployments of one pool"):
        DeploymentSpec.model_validate({"model": "qwen2.5-7b", "pools": [plain, agents]})
    dies = {"pool": "a", "worker": 0, "at_s": 5.0}
    with pytest.raises(ValidationError, match=r"incidents\.0\.pool: .* agents' objects are not simulated"):
        DeploymentSpec.model_validate({"model": "qwen2.5-7b", "pools": [agents], "incidents": [dies]})


def test_models_without_such_matrices_and_slots_without_room_are_refused():
    with pytest.raises(AgentsRefused, match="not every layer has a dense feed-forward"):
        plan(pool(adapters={}), "qwen3-30b-a3b")
    with pytest.raises(AgentsRefused, match=r"agents.slots: 5000 take .* no KV is left"):
        plan(pool(adapters={}, slots=5000))


def flags(**agents) -> dict[str, str]:
    of = pool(**agents)
    accelerator = CATALOGUE.get("Accelerator", "h100-sxm").spec
    return {flag[0]: flag[-1] for flag in engine_flags(Launch(of, QWEN, accelerator, 1000))}


def test_flags_of_adapters():
    engine_options = flags(policy="queued", adapters={"rank": 32}, slots=64)
    assert engine_options["--max-loras-per-batch"] == "64"
    assert engine_options["--max-lora-rank"] == "32"
    assert engine_options["--lora-target-modules"] == "all"
    assert "--enable-lora-overlap-loading" in engine_options
    reactive = flags(adapters={"rank": 32, "targets": ["q", "v"]}, slots=64)
    assert "--enable-lora-overlap-loading" not in reactive
    assert "--lora-target-modules" not in reactive
    assert "--enable-lora" not in flags()


@pytest.mark.parametrize(
    ("agents", "words"),
    [
        ({"policy": "distance", "adapters": {}, "slots": 4}, "SGLang has no policy distance"),
        ({"engine": {"name": "vllm"}, "policy": "queued", "adapters": {}, "slots": 4}, "flags are those of lru"),
        ({"engine": {"name": "vllm"}, "adapters": {}, "slots": 4}, "set --max-cpu-loras"),
        ({"objects": [{"name": "index", "mib": 5}], "slots": 4}, "SGLang does not manage index"),
        ({"adapters": {}}, "simulated in one with KV"),
    ],
)
def test_what_no_engine_has_is_said_in_words(agents, words):
    assert any(words in note for note in notes(pool(**agents)))
    assert not notes(pool())


def test_what_sglang_did_before_it_evicted_by_last_use_is_written_as_that():
    old = {"adapters": {}, "slots": 8, "policy": "by_slot"}
    assert flags(**old) == flags(adapters={}, slots=8)
    assert any("only before it had --lora-eviction-policy" in note for note in notes(pool(**old)))


def test_flags_of_adapters_under_vllm():
    engine_options = flags(engine={"name": "vllm"}, adapters={"rank": 48}, slots=64)
    assert engine_options["--max-loras"] == "64"
    # The smallest that vLLM takes and that will do.
    assert engine_options["--max-lora-rank"] == "64"
    assert "--enable-lora" in engine_options
    assert "--enable-lora" not in flags(engine={"name": "vllm"}, slots=None)


def test_the_nearest_flags_are_written_for_a_policy_that_no_engine_has():
    assert "--enable-lora-overlap-loading" in flags(policy="distance", adapters={}, slots=4)


def space(slots, tiers, policies=("lru", "distance"), ahead_s=(1.0, 5.0)) -> CacheSpace:
    return CacheSpace.model_validate(
        {
            "tiers": [{"media": ["ddr5"], "gib": tiers}] if tiers else [],
            "eviction": ["lru", "lfu"],
            "agents": {"slots": slots, "policies": list(policies), "ahead_s": list(ahead_s), "adapters": {}},
        }
    )


@pytest.mark.parametrize(
    ("slots", "tiers", "count"),
    [
        # lru; distance with either ahead_s.
        ([None, 8], [], 2 * 3),
        # With tiers two evictions under lru, and no shared pool.
        ([None, 8, 16], [0, 100, 200], 3 * 3 + 2 * 2 * (2 + 2)),
    ],
)
def test_every_choice_is_counted_and_reached(slots, tiers, count):
    choices = TierChoices(space(slots, tiers), "sglang", {"ddr5": "worker"})
    assert choices.count() == count
    seen, line = set(), [()]
    while line:
        path = line.pop()
        decisions: list[tuple] = []

        def ask(name, options, path=path, decisions=decisions):
            decisions.append(tuple(options))
            return options[path[len(decisions) - 1]] if len(decisions) <= len(path) else options[0]

        chosen = choices.choose(ask)
        seen.add(repr(chosen))
        line += [
            (*path, *[0] * (at - len(path)), k)
            for at in range(len(path), len(decisions))
            for k in range(1, len(decisions[at]))
        ]
    assert len(seen) == count


def test_host_memory_for_objects_is_a_choice_of_workers_with_a_disk():
    given = space([8], [96], policies=["lru", "queued"]).model_dump()
    disk = {"media": ["nvme-gen4"], "gib": [0, 500]}
    agents = given["agents"] | {"host": "tier", "host_gib": [None, 8, 16]}
    choices = TierChoices(
        CacheSpace.model_validate(given | {"eviction": ["lru"], "tiers": [*given["tiers"], disk], "agents": agents}),
        "sglang",
        {"ddr5": "worker", "nvme-gen4": "node"},
    )
    assert choices.count() == 2 * 3 + 2
    sizes = {
        (tier_2, choice.agents.host_gib)
        for tier_2 in (0, 500)
        for gib in (None, 8, 16)
        for choice in [choices.choose(lambda name, o, at=(tier_2, gib): _chosen(name, o, *at))]
    }
    assert sizes == {(0, None), (500, None), (500, 8), (500, 16)}
    with pytest.raises(ValidationError, match="host_gib: objects lie outside the tiers"):
        CacheSpace.model_validate(given | {"agents": agents | {"host": "separate"}})


def _chosen(name, options, tier_2_gib, host_gib):
    known = {"tier_2_gib": tier_2_gib, "agent_host_gib": host_gib}
    return known.get(name, options[0])


def test_a_choice_leads_to_a_pool_and_back():
    from hisearch.search.model.deployments import deployment_of, with_cache
    from hisearch.specs.deployments.deployment import RouterSpec

    choices = TierChoices(space([None, 8], [0, 100]), "sglang", {"ddr5": "worker"})
    base = deployment_of(
        "qwen2.5-7b", "auto", PoolSpec(accelerator="h100-sxm", engine={"name": "sglang"}), 1, RouterSpec()
    )
    for choice in choices.neighbours(
        with_cache(base, memory_fraction=0.9, choice=choices.choose(lambda _, o: o[0])).pool
    ):
        deployment = with_cache(base, memory_fraction=0.9, choice=choice)
        assert deployment.pool.agents == choice.agents
        assert {d.name: d.value for d in choices.decisions_of(deployment.pool)}["agent_policy"] == choice.agents.policy


def test_spaces_of_other_engines_and_of_tiers_without_slots_are_refused():
    with pytest.raises(ValidationError, match="workers with tiers need a number"):
        space([None], [0, 100])
    execution = {"accelerators": ["h100-sxm"], "engines": ["sglang", "vllm"]}
    SearchSpaceSpec.model_validate({"execution": execution, "cache": space([8], []).model_dump()})
    for engines, cache, words in (
        (["trtllm"], space([8], []), "simulated for the engines sglang and vllm, not trtllm"),
        (["vllm"], space([8], [0, 100]), "tiers are simulated for the engine sglang alone"),
        (["vllm"], space([None, 8], []), "vllm needs numbers"),
    ):
        with pytest.raises(ValidationError, match=words):
            SearchSpaceSpec.model_validate({"execution": execution | {"engines": engines}, "cache": cache.model_dump()})
