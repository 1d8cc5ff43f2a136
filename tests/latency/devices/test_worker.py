"""Workers of several devices: against the roofline, against their own law, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from devices_catalogue import A6000, CATALOGUE, NPU, PIM, ROOFLINE, SELF_PIM, compiled, worker
from hypothesis import given, settings
from hypothesis import strategies as st
from latency_catalogue import H100, LLAMA_8B, MODELS, QWEN3_30B_A3B, VLLM
from pydantic import ValidationError

from hisearch.hardware.power import plan_power
from hisearch.latency.device_memory.plan import DoesNotFit, plan_memory
from hisearch.latency.devices.breakdown import by_operator
from hisearch.latency.devices.build import DevicesRefused, WorkerDevices
from hisearch.latency.devices.compose import compose
from hisearch.latency.devices.memory import KV_SHARE, devices_memory
from hisearch.latency.devices.work import Load
from hisearch.latency.estimators.roofline import RooflineEstimator
from hisearch.latency.priced import PricedWorker
from hisearch.latency.sharding import Parallelism
from hisearch.latency.step_cost import decode_step_seconds, step_seconds
from hisearch.specs.machines.devices import DevicesSpec

#: Kimi Delta Attention, and Mamba-2 with layers that are a mixer or an FFN alone; both with experts in a latent.
RECURRENT = [CATALOGUE.get("Model", name).spec for name in ("kimi-k3", "nemotron-3-super-120b-a12b")]
ATTENTION_ON_PIM = {"attached": ["pim"], "operators": {"decode_attention": "pim"}}


def composed(devices, model=LLAMA_8B, accelerator=A6000, split=None):
    return compose(devices, model, accelerator, ROOFLINE, split or Parallelism(), None, "bf16")


def load_of(chunk=(0, 0), decodes=()):
    new, cached = chunk
    values = (new + len(decodes), new, cached, len(decodes), sum(decodes))
    return Load(*(np.array([float(value)]) for value in values))


@pytest.mark.parametrize("model", [*MODELS, *RECURRENT], ids=lambda m: m.huggingface_id)
@pytest.mark.parametrize("tp", [1, 4])
def test_without_devices_it_is_the_roofline(model, tp):
    """L7: the same operators, one by one, add up to the same tables."""
    sizes = {"max_tokens": 2048, "max_sequences": 64, "max_context_tokens": 200_000}
    ours = compiled(model, H100, VLLM, tp=tp, **sizes)
    priced = PricedWorker(model, H100, Parallelism(tp), None, "bf16", VLLM, **sizes)
    theirs = RooflineEstimator("test", ROOFLINE).compile(priced)
    layers, launch = model.layers, ROOFLINE.decode_attention.launch_s
    linear = model.linear_attention.layers if model.linear_attention else 0
    for measure in ("seconds", "joules"):
        a, b = getattr(ours, measure), getattr(theirs, measure)
        launches = layers * launch if measure == "seconds" else 0.0
        # The roofline counts attention's launches with the tokens; devices count them as attention's own.
        np.testing.assert_allclose(a.token_s[1:] + launches, b.token_s[1:], rtol=1e-9)
        np.testing.assert_allclose(a.sequence_s, b.sequence_s, rtol=1e-9)
        launch_s = (layers - linear) * launch if measure == "seconds" else 0.0
        np.testing.assert_allclose(a.decode_s[1:], b.decode_s[1:] + launch_s, rtol=1e-9)
    assert ours.idle_w == theirs.idle_w


def test_tables_are_the_law_on_knots():
    devices = worker(**ATTENTION_ON_PIM, schedule="best")
    law, costs = composed(devices), compiled(LLAMA_8B, A6000, VLLM, devices).seconds
    head = law.sequence(np.array([64.0]))[0]
    host = costs.host_s + 64 * costs.host_per_sequence_s
    assert decode_step_seconds(costs, 64, 64 * 512) == pytest.approx(
        host + head + law.step(load_of(decodes=[512] * 64))[0], rel=1e-9
    )
    chunk = step_seconds(costs, [(1024, 2048)], [], sampling=0)
    assert chunk == pytest.approx(costs.host_s + costs.host_per_sequence_s + law.step(load_of((1024, 2048)))[0])


@given(
    new=st.integers(1, 3000), cached=st.integers(0, 30_000), n=st.integers(1, 400), mean=st.integers(16, 900),
    schedule=st.sampled_from(["serial", "interleaved", "best"]),
)  # fmt: skip
@settings(deadline=None)
def test_tables_are_near_the_law_between_knots(new, cached, n, mean, schedule):
    """Kinks of overlapped phases are rounded off by the coarse knots of ``mixed_decode_s``, by a tenth at most."""
    devices = worker(**ATTENTION_ON_PIM, schedule=schedule)
    law, costs = LAWS.setdefault(schedule, (composed(devices), compiled(LLAMA_8B, A6000, VLLM, devices).seconds))
    host = costs.host_s + (n + 1) * costs.host_per_sequence_s
    seconds = step_seconds(costs, [(new, cached)], [mean] * n, sampling=0) - host
    assert seconds == pytest.approx(law.step(load_of((new, cached), [mean] * n))[0], rel=0.1)


LAWS: dict[str, tuple[object, object]] = {}


def test_attention_on_pim_adds_up_by_hand():
    """Decode attention of one layer: query, new KV and scores over the link, the channels' products, the output."""
    law = composed(worker(**ATTENTION_ON_PIM))
    n, each = 64, 500
    stages = law.stages(load_of(decodes=[each] * n))
    by_station: dict[str, float] = {}
    for stage in stages:
        by_station[stage.station] = by_station.get(stage.station, 0.0) + float(stage.seconds[0])
    link = PIM.link
    kv, query = n * 2 * 8 * 128 * 2, n * 32 * 128 * 2
    scores = n * each * 32 * 2
    over = sum(link.latency_s + b / link.bandwidth_bytes_per_s for b in (kv, query, query, scores, scores))
    assert sum(t for name, t in by_station.items() if name.startswith("link")) == pytest.approx(over)
    pim = PIM.pim
    rate = pim.channel_bytes_per_s * pim.internal_speedup * pim.efficiency
    # 512 heads on 256 channels are two of each; the four queries that share one read its keys and values in turn.
    read = 2 * 4 * 2 * 128 * 2 * each
    assert by_station["pim"] == pytest.approx(read / rate + 2 * 4 * 2 * pim.product_s)
    joules = next(stage for stage in law.stages(load_of(decodes=[each] * n), "joules") if stage.station == "pim")
    assert joules.seconds[0] == pytest.approx(256 * read * PIM.internal_j_per_byte)


def test_kv_elsewhere_is_read_over_the_link():
    plain, far = composed(worker()), composed(worker(attached=["cxl"], kv="cxl"))
    load = load_of(decodes=[4000] * 8)
    slower = far.step(load)[0] - plain.step(load)[0]
    read = 32 * 8 * 4000 * 4096 / A6000.host_link.bandwidth_bytes_per_s
    assert slower == pytest.approx(read, rel=0.05)


def test_streamed_layers_take_the_longer_of_layer_and_link():
    law = composed(worker(attached=["cxl"], streamed=[{"device": "cxl", "layers": 8}]))
    plain, load = composed(worker()), load_of(decodes=[100])
    layer = 2 * (4096 * 6144 + 4096 * 4096 + 3 * 4096 * 14336)
    waits = 8 * (0.35e-6 + layer / A6000.host_link.bandwidth_bytes_per_s - plain.step(load)[0] / 32)
    assert law.step(load)[0] == pytest.approx(plain.step(load)[0] + waits, rel=1e-9)
    long = load_of((4096, 0))
    assert law.step(long)[0] == pytest.approx(plain.step(long)[0])


def test_interleaving_crosses_over():
    """Reading the weights twice costs small batches more than hiding attention saves; large ones gain."""
    gpu = composed(worker())
    halves = composed(worker(**ATTENTION_ON_PIM, schedule="interleaved"))
    ratios = [gpu.step(load)[0] / halves.step(load)[0] for load in (load_of(decodes=[384] * n) for n in (16, 64, 512))]
    assert ratios[0] < ratios[1] < 1.0 < ratios[2]
    more = halves.step_joules(load_of(decodes=[384] * 64))["accelerator"]
    assert more[0] > gpu.step_joules(load_of(decodes=[384] * 64))["accelerator"][0]


def test_best_is_never_slower_than_either():
    serial, halves, best = (
        composed(worker(**ATTENTION_ON_PIM, schedule=name)) for name in ("serial", "interleaved", "best")
    )
    for n in (1, 2, 50, 200, 500):
        load = load_of(decodes=[700] * n)
        assert best.step(load)[0] == min(serial.step(load)[0], halves.step(load)[0])


def test_components_add_up():
    costs = compiled(LLAMA_8B, A6000, VLLM, worker(**ATTENTION_ON_PIM), tp=2)
    assert set(costs.components) == {"accelerator", "pim", "link"}
    for name in ("token_s", "sequence_s", "chunk_rate", "decode_s"):
        parts = sum(getattr(component, name) for component in costs.components.values())
        np.testing.assert_allclose(parts, getattr(costs.joules, name))
    assert costs.idle_w == pytest.approx(sum(costs.idle_w_by_component.values()))
    assert costs.idle_w_by_component["pim"] == 2 * PIM.idle_w


def test_policies_send_memory_bound_attention_to_pim():
    """Greedy sees the transfers: with a slow link attention stays where it is."""
    by_intensity = composed(worker(attached=["pim"], mapping="by_intensity", context_tokens=8192))
    assert by_intensity.map["decode_attention"] == "pim"
    assert by_intensity.map["prefill_attention"] == "accelerator"
    greedy = composed(worker(attached=["pim"], mapping="greedy", context_tokens=8192))
    assert greedy.map["decode_attention"] == "pim"
    assert greedy.map["ffn"] == "accelerator"
    slow = PIM.model_copy(update={"link": PIM.link.model_copy(update={"latency_s": 0.1})})
    spec = DevicesSpec.model_validate({"attached": {"pim": {"device": "pim"}}, "mapping": "greedy"})
    assert composed(WorkerDevices(spec, {"pim": slow})).map["decode_attention"] == "accelerator"


def test_what_is_refused_names_the_operators():
    with pytest.raises(DevicesRefused, match=r"devices.operators.prefill_attention: pim has no law for prefill_att"):
        composed(worker(attached=["pim"], operators={"prefill_attention": "pim"}))
    with pytest.raises(DevicesRefused, match=r"cxl has no law for ffn, lm_head"):
        composed(worker(attached=["cxl"], operators={"ffn": "cxl", "lm_head": "cxl"}))
    with pytest.raises(ValidationError, match="no device for prefill_attention, decode_attention, ffn, experts"):
        worker(operators={"projections": "accelerator", "lm_head": "accelerator"}, others=None)
    with pytest.raises(ValidationError, match="no device 'pmi'; known: accelerator, pim"):
        worker(attached=["pim"], operators={"decode_attention": "pmi"})
    spec = DevicesSpec.model_validate(
        {"attached": {"pim": {"device": "pim"}}, "operators": {"decode_attention": "pim"}}
    )
    with pytest.raises(DevicesRefused, match=r"devices.links: no link between .*pim \(decode_attention\)"):
        composed(WorkerDevices(spec, {"pim": PIM.model_copy(update={"link": None})}))
    with pytest.raises(ValidationError, match="joins pim with itself"):
        worker(attached=["pim"], links=[{"between": ["pim", "pim"], "link": PIM.link.model_dump()}])
    with pytest.raises(DevicesRefused, match=r"devices\.streamed: ffn runs on cpu, where its weights lie"):
        composed(worker(attached=["cpu", "cxl"], operators={"ffn": "cpu"}, streamed=[{"device": "cxl", "layers": 4}]))
    with pytest.raises(DevicesRefused, match="40 layers are streamed of 32"):
        composed(worker(attached=["cxl"], streamed=[{"device": "cxl", "layers": 40}]))


def test_kv_takes_the_room_of_its_device():
    relief = devices_memory(worker(**ATTENTION_ON_PIM), LLAMA_8B, A6000, ROOFLINE, Parallelism(), None, "bf16")
    plan = plan_memory(
        LLAMA_8B, A6000, tensor_parallel=1, weight_dtype=None, kv_dtype="bf16", engine=VLLM, elsewhere=relief
    )
    assert plan.kv_capacity_tokens == pytest.approx(KV_SHARE * PIM.memory_bytes / 131072, rel=1e-4)


def test_streamed_weights_make_room_and_fill_their_device():
    def planned(devices):
        relief = devices_memory(devices, LLAMA_8B, A6000, ROOFLINE, Parallelism(), None, "bf16")
        return plan_memory(
            LLAMA_8B, A6000, tensor_parallel=1, weight_dtype=None, kv_dtype="bf16", engine=VLLM, elsewhere=relief
        )

    layer = 2 * (4096 * 6144 + 4096 * 4096 + 3 * 4096 * 14336)
    plain, streamed = planned(worker()), planned(worker(attached=["cxl"], streamed=[{"device": "cxl", "layers": 16}]))
    assert plain.weights_bytes - streamed.weights_bytes == pytest.approx(14 * layer)
    small = KNOWN_SMALL.model_copy(update={"memory_bytes": 2.0**30})
    spec = DevicesSpec.model_validate(
        {"attached": {"cxl": {"device": "cxl"}}, "streamed": [{"device": "cxl", "layers": 16}]}
    )
    with pytest.raises(DoesNotFit, match="do not fit on cxl"):
        planned(WorkerDevices(spec, {"cxl": small}))


KNOWN_SMALL = worker(attached=["cxl"]).devices["cxl"]


def test_systolic_prefill_is_near_its_peak_and_decode_far_below():
    """A weight-stationary array is full with many rows, and idles R - 1 of R cycles with one."""
    law = compose(worker(), LLAMA_8B, NPU, ROOFLINE, Parallelism(), None, "bf16")
    matrices = 32 * (4096 * 6144 + 4096 * 4096 + 3 * 4096 * 14336)
    long = law.step(load_of((4096, 0)))[0] - law._prefill(load_of((4096, 0)), "seconds")[0]
    assert 2 * matrices * 4096 / 32.77e12 / long > 0.8
    decode_s = law.step(load_of(decodes=[1]))[0]
    assert decode_s == pytest.approx(32 * (32 * 48 + 32 * 32 + 3 * 32 * 112) * 128 / 1e9, rel=0.25)


def test_experts_need_a_model_that_has_some():
    with pytest.raises(DevicesRefused, match="has no experts"):
        composed(worker(experts={}))
    assert composed(worker(experts={}), model=QWEN3_30B_A3B, accelerator=H100).expert_loads is not None


def test_a_network_takes_the_place_of_the_peer_link():
    dimension = {"topology": "fully_connected", "bandwidth_bytes_per_s": 100e9, "latency_s": 2e-6}
    law = composed(worker(network={"dimensions": [{**dimension, "ranks": 8}]}), split=Parallelism(tensor=4))
    tokens = np.array([100.0])
    terms = ROOFLINE.all_reduce
    all_reduce_s = terms.alpha_s + 2 * (2e-6 + 3 / 4 * 100 * 4096 * 2 / (100e9 * terms.bandwidth))
    assert law.collectives.layer(tokens)[0] == pytest.approx(2 * all_reduce_s)
    with pytest.raises(DevicesRefused, match=r"devices\.network: groups of 8 ranks"):
        composed(worker(network={"dimensions": [{**dimension, "ranks": 4}]}), split=Parallelism(tensor=8))


def test_a_network_as_wide_as_the_peer_link_costs_what_it_does():
    """L7: a switch whose hops have half the peer link's latency each; what software takes to start stays."""
    link, split = A6000.peer_link, Parallelism(tensor=4, pipeline=2)
    dimension = {"topology": "switch", "ranks": 8, "bandwidth_bytes_per_s": link.bandwidth_bytes_per_s}
    network = {"dimensions": [{**dimension, "latency_s": link.latency_s / 2}]}
    stated, plain = (composed(each, split=split).collectives for each in (worker(network=network), worker()))
    tokens = np.array([1.0, 64.0, 4096.0])
    np.testing.assert_allclose(stated.layer(tokens), plain.layer(tokens))
    np.testing.assert_allclose(stated.logits(tokens), plain.logits(tokens))
    np.testing.assert_allclose(stated.embedding(tokens), plain.embedding(tokens))


WITH_JOULES = A6000.model_copy(update={"peer_link": A6000.peer_link.model_copy(update={"energy_j_per_byte": 1e-9})})
SPLITS = [Parallelism(tensor=4, pipeline=2), Parallelism(tensor=2, attention_data=4), Parallelism(pipeline=4)]


@pytest.mark.parametrize("split", SPLITS, ids=str)
@pytest.mark.parametrize("schedule", ["serial", "interleaved"])
def test_a_network_like_the_peer_link_costs_its_joules(split, schedule):
    """L7: collectives of a switch that states no joules are those by the token without it, and the logits' gather."""
    dimension = {"topology": "switch", "ranks": 8, "bandwidth_bytes_per_s": 100e9, "latency_s": 1e-6}
    devices = worker(network={"dimensions": [dimension]}, schedule=schedule)
    law = composed(devices, accelerator=WITH_JOULES, split=split)
    load = load_of((512, 1000), [3000] * 16)
    power = plan_power(split, LLAMA_8B, WITH_JOULES, None)
    assert split.tensor * law.step_joules(load)["link"][0] == pytest.approx(power.peer_j_per_token * 528)
    assert plan_power(split, LLAMA_8B, WITH_JOULES, None, networked=True).peer_j_per_token == 0.0
    gathered = 1e-9 * (split.tensor - 1) / split.tensor * 16 * LLAMA_8B.vocab_size * 2.0
    assert law.sequence_joules(np.array([16.0]))["link"][0] == pytest.approx(gathered)
    shares = {(share.operator, share.device): share.joules for share in by_operator(law, load)}
    assert split.tensor * shares["collectives", "link"] == pytest.approx(
        power.peer_j_per_token * 528 + split.tensor * gathered
    )


def test_experts_dealt_over_a_network_pay_for_their_all_to_alls():
    """Each token goes to the sets with its experts and back, seven in eight to other ranks, over two hops each way."""
    dimension = {"topology": "switch", "ranks": 8, "bandwidth_bytes_per_s": 100e9, "latency_s": 1e-6}
    devices = worker(network={"dimensions": [{**dimension, "energy_j_per_byte": 1e-12}]})
    split, model = Parallelism(attention_data=8, expert=8), QWEN3_30B_A3B
    law = composed(devices, model, H100, split)
    sets = 8 * (1 - (7 / 8) ** model.moe.experts_per_token)
    each = 2 * sets * model.hidden_size * 2.0 * 7 / 8 * 2 * 1e-12
    assert law.step_joules(load_of(decodes=[1000] * 100))["link"][0] == pytest.approx(100 * model.layers * each)


def test_what_a_channel_holds():
    """One long request: its heads on eight channels, itself on one, or a stripe of it on each of 256."""
    load, seconds = load_of(decodes=[32_768]), {}
    for mapping in ("heads", "requests", "striped"):
        spec = DevicesSpec.model_validate(
            {"attached": {"pim": {"device": "pim", "mapping": mapping}}, "operators": {"decode_attention": "pim"}}
        )
        stages = composed(WorkerDevices(spec, {"pim": PIM})).stages(load)
        seconds[mapping] = next(float(stage.seconds[0]) for stage in stages if stage.station == "pim")
    products = PIM.pim.product_s
    assert seconds["requests"] == pytest.approx(8 * seconds["heads"])
    assert seconds["heads"] - 8 * products == pytest.approx(256 / 8 * (seconds["striped"] - 64 * products))
    for key, value in (("mapping", "heads"), ("stripe_channels", 2)):
        spec = DevicesSpec.model_validate({"attached": {"cxl": {"device": "cxl", key: value}}})
        with pytest.raises(DevicesRefused, match=rf"attached.cxl.{key}: cxl has no channels"):
            composed(WorkerDevices(spec, {"cxl": KNOWN_SMALL}))


def pim_seconds(decodes, device=PIM, **entry):
    """Seconds of decode attention of one layer in PIM."""
    spec = DevicesSpec.model_validate(
        {"attached": {"pim": {"device": "pim", **entry}}, "operators": {"decode_attention": "pim"}}
    )
    stages = composed(WorkerDevices(spec, {"pim": device})).stages(load_of(decodes=decodes))
    return next(float(stage.seconds[0]) for stage in stages if stage.station == "pim")


@given(st.integers(1, 100), st.integers(16, 9000), st.integers(0, 8))
@settings(deadline=None)
def test_stripes_over_several_channels_count_like_channels(n, each, power):
    """Against requests dealt to channels one stripe after the other, the fullest channel by count."""
    stripe = 2**power
    held = [0] * 256
    for place in range(n * 8 * stripe):
        held[place % 256] += 1
    pim = PIM.pim
    rate = pim.channel_bytes_per_s * pim.internal_speedup * pim.efficiency
    stripe_s = 4 * 2 * 128 * 2 * each / stripe / rate + 4 * 2 * pim.product_s
    assert pim_seconds([each] * n, stripe_channels=stripe) == pytest.approx(max(held) * stripe_s)


def test_a_head_on_all_channels_is_striped():
    assert pim_seconds([5000] * 3, stripe_channels=256) == pytest.approx(pim_seconds([5000] * 3, mapping="striped"))
    with pytest.raises(DevicesRefused, match=r"attached.pim.stripe_channels: is 512, but there are 256 channels"):
        pim_seconds([5000], stripe_channels=512)


@pytest.mark.parametrize(
    ("name", "token_ns", "request_ns"),
    [("hbm2-pim", 242.0548, 14513.5), ("ddr4-pim", 333.2538, 30675.3), ("lpddr5-pim", 282.4338, 15996.7)],
)
@pytest.mark.parametrize("length", [128, 1024, 4096])
def test_a_request_on_a_channel_takes_what_a_cycle_level_simulator_says(name, token_ns, request_ns, length):
    """Lines that LLMServingSim 2 publishes for one request of Llama-3.1-8B (``inference_serving/pim_model.py``)."""
    device = CATALOGUE.get("Device", name).spec
    published_ns = token_ns * length + request_ns
    assert pim_seconds([length], device, mapping="requests") * 1e9 == pytest.approx(published_ns, rel=0.01)


def pim_like(**changes):
    spec = DevicesSpec.model_validate(
        {"attached": {"pim": {"device": "pim"}}, "operators": {"decode_attention": "pim"}}
    )
    return composed(WorkerDevices(spec, {"pim": PIM.model_copy(update=changes)}))


def test_a_device_without_limits_leaves_the_rest_of_the_step():
    """L7: infinite bandwidth, no latency and no cost of a product leave what the accelerator's own memory gives out."""
    endless = SELF_PIM.pim.model_copy(update={"channel_bytes_per_s": 1e30, "product_s": 0.0})
    link = PIM.link.model_copy(update={"kind": "nvlink", "bandwidth_bytes_per_s": 1e30, "latency_s": 0.0})
    load = load_of(decodes=[4000] * 32)
    free = pim_like(pim=endless, link=link, memory_bandwidth_bytes_per_s=256e30).step(load)[0]
    given = 32 * 32 * (2 * 8 * 128 * 2 + 2 * 32 * 128 * 2) / A6000.memory_bandwidth_bytes_per_s
    assert free - given == pytest.approx(composed(worker()).step(load._replace(sequences=0 * load.tokens))[0])


@given(st.integers(1, 300), st.integers(1, 20_000), st.sampled_from([2, 4]))
def test_more_channels_and_faster_links_are_never_slower(n, each, times):
    """L7, but for a channel more or less that is busy: channels come in multiples."""
    load = load_of(decodes=[each] * n)
    more = PIM.pim.model_copy(update={"channels": 256 * times})
    faster = PIM.link.model_copy(update={"bandwidth_bytes_per_s": times * 25e9})
    plain = pim_like().step(load)[0]
    assert pim_like(pim=more, memory_bytes=times * PIM.memory_bytes).step(load)[0] <= plain * (1 + 1e-12)
    assert pim_like(link=faster).step(load)[0] <= plain


@pytest.mark.parametrize("block", [{}, ATTENTION_ON_PIM, {"attached": ["cxl"], "kv": "cxl"}])
def test_operators_add_up_to_the_step(block):
    law, load = composed(worker(**block), split=Parallelism(tensor=2)), load_of((300, 500), [800] * 40)
    shares = by_operator(law, load)
    n = load.sequences
    assert sum(share.seconds for share in shares) == pytest.approx(law.step(load)[0] + law.sequence(n)[0])
    joules = law.step(load, "joules")[0] + law.sequence(n, "joules")[0]
    assert sum(share.joules for share in shares) == pytest.approx(joules)
    names = {share.operator: share.device for share in shares if share.operator != "transfers"}
    assert {"projections", "ffn", "prefill_attention", "decode_attention", "lm_head", "elementwise"} <= set(names)
    assert names["decode_attention"] == law.map["decode_attention"]


class TestSelectiveBatching:
    """Orca's: attention runs for one request after the other, the rest of the layer for all."""

    @pytest.mark.parametrize("accelerator", [A6000, NPU], ids=["sheet", "systolic"])
    def test_alike_requests_cost_as_many_times_one_request_s_attention(self, accelerator):
        ours, batched = (
            composed(worker(attention=attention), accelerator=accelerator) for attention in ("by_request", "batched")
        )
        for measure in ("seconds", "joules"):
            alone = batched._decode(load_of(decodes=[700]), measure)
            np.testing.assert_allclose(ours._decode(load_of(decodes=[700] * 24), measure), 24 * alone)
            np.testing.assert_array_equal(
                ours._decode(load_of(decodes=[700]), measure), batched._decode(load_of(decodes=[700]), measure)
            )
            # What is not attention is batched.
            rest = [
                law.step(load_of(decodes=[700] * 24), measure) - law._decode(load_of(decodes=[700] * 24), measure)
                for law in (ours, batched)
            ]
            np.testing.assert_allclose(*rest)

    def test_on_a_sheet_it_costs_launches_and_on_arrays_tiles_too(self):
        for accelerator in (A6000, NPU):
            ours, batched = (
                composed(worker(attention=attention), accelerator=accelerator).step(load_of(decodes=[100] * 64))[0]
                for attention in ("by_request", "batched")
            )
            assert ours > batched

    def test_a_step_without_decodes_has_no_attention_of_theirs(self):
        ours = composed(worker(attention="by_request"))
        assert ours._decode(load_of(chunk=(512, 0)), "seconds")[0] == 0.0
        np.testing.assert_array_equal(
            ours.step(load_of(chunk=(512, 0))), composed(worker()).step(load_of(chunk=(512, 0)))
        )


def test_settings_of_a_policy_need_one():
    for name in ("sequences", "context_tokens"):
        with pytest.raises(ValidationError, match="by which a policy maps operators; mapping is by_hand"):
            worker(**{name: 7})
        worker(mapping="greedy", **{name: 7})
