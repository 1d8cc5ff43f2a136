"""Every policy is one file: what it declares, what its kernel must have, and what it may not read."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path
from typing import Any, get_args

import pytest

from docs import generate_policies
from hisearch.base import policies, registry
from hisearch.base.policies import (
    ADMISSIONS,
    AUTOSCALERS,
    EVICTIONS,
    PREFETCHES,
    QUEUE_ORDERS,
    ROUTERS,
    WRITE_POLICIES,
    Parameter,
    Registry,
)
from hisearch.specs.deployments.cluster import AutoscalerName
from hisearch.specs.deployments.deployment import SCHEDULES, EvictionName, ScheduleName
from hisearch.specs.deployments.routing import AdmissionSpec, RouterName, RouterSpec
from hisearch.specs.deployments.tiers import MovementSpec, PrefetchName, TierEvictionName, TierSpec, WritePolicyName

#: Kind -> its registry, the kernel that each policy must have, and the arguments of that.
KINDS: dict[str, tuple[Registry[Any], str, tuple[str, ...]]] = {
    "router": (ROUTERS, "choose", ("fleet", "route", "k", "r", "now")),
    "admission": (ADMISSIONS, "admits", ("fleet", "r", "now")),
    "autoscaler": (AUTOSCALERS, "load", ("fleet", "m")),
    "eviction": (EVICTIONS, "before", ("sim", "a", "b")),
    "write": (WRITE_POLICIES.subset(lambda policy: not policy.at_eviction), "copies", ("sim", "d")),
    "prefetch": (PREFETCHES.subset(lambda policy: policy.flag != "best_effort"), "longest_wait_s", ("sim", "tokens")),
}
ALL = [
    pytest.param(registry, name, id=f"{registry.package.rsplit('.', 1)[-1]}-{name}")
    for registry in (ROUTERS, ADMISSIONS, AUTOSCALERS, EVICTIONS, QUEUE_ORDERS, WRITE_POLICIES, PREFETCHES)
    for name in registry
]


@pytest.mark.parametrize("kind", KINDS)
def test_every_policy_has_its_kernel(kind: str) -> None:
    registry, function, arguments = KINDS[kind]
    for module in registry.modules.values():
        kernel = getattr(importlib.import_module(module), function)
        code = getattr(kernel, "py_func", kernel).__code__
        assert code.co_varnames[: code.co_argcount] == arguments


@pytest.mark.parametrize(("registry", "name"), ALL)
def test_what_the_reader_sees_is_what_the_module_declares(registry: Registry[Any], name: str) -> None:
    module = importlib.import_module(registry.modules[name])
    assert registry[name] in vars(module).values()
    assert registry[name].summary.endswith(".")


@pytest.mark.parametrize(("registry", "name"), ALL)
def test_defaults_lie_within_their_ranges(registry: Registry[Any], name: str) -> None:
    for parameter in registry[name].parameters:
        for value in (parameter.default, *parameter.search):
            if parameter.choices:
                assert value in parameter.choices
            elif value is None:
                assert parameter.optional
            else:
                assert parameter.at_least is None or value >= parameter.at_least
                assert parameter.above is None or value > parameter.above
                assert parameter.at_most is None or value <= parameter.at_most


@pytest.mark.parametrize(("registry", "name"), ALL)
def test_no_policy_reads_true_output_lengths(registry: Registry[Any], name: str) -> None:
    """Law L5, for the file that a contributor adds; the kernels' own tests hold it for what happens."""
    path = importlib.import_module(registry.modules[name]).__file__
    assert path is not None
    tree = ast.parse(Path(path).read_bytes())
    assert "output_tokens" not in {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}


def test_specs_know_every_policy() -> None:
    assert get_args(RouterName) == tuple(ROUTERS)
    assert get_args(AutoscalerName) == tuple(AUTOSCALERS)
    assert set(get_args(TierEvictionName)) == {name for name, policy in EVICTIONS.items() if policy.stores}
    assert set(get_args(EvictionName)) == {name for name, policy in EVICTIONS.items() if policy.engine}
    assert get_args(ScheduleName) == tuple(QUEUE_ORDERS)
    assert (get_args(WritePolicyName), get_args(PrefetchName)) == (tuple(WRITE_POLICIES), tuple(PREFETCHES))
    assert SCHEDULES["trtllm"] == ("fcfs", "priority")
    models = ((ROUTERS, RouterSpec), (ADMISSIONS, AdmissionSpec), (EVICTIONS, TierSpec))
    for kind, model in (*models, (WRITE_POLICIES, MovementSpec), (PREFETCHES, MovementSpec)):
        assert set(kind.parameters()) <= set(model.model_fields)


def test_records_that_nothing_was_written_to_have_the_plainest_policy() -> None:
    first = {"round_robin": ROUTERS, "none": ADMISSIONS, "requests_in_flight": AUTOSCALERS, "lru": EVICTIONS}
    hicache = {"write_through": WRITE_POLICIES, "best_effort": PREFETCHES}
    for name, kind in (first | hicache | {"fcfs": QUEUE_ORDERS}).items():
        assert kind.code(name) == 0


def test_codes_are_places_in_the_order_of_names() -> None:
    assert [ROUTERS.code(name) for name in ROUTERS] == list(range(len(ROUTERS)))
    assert ROUTERS.mask(lambda policy: policy.reads_prompts) == sum(
        1 << ROUTERS.code(name)
        for name in (
            "bucket",
            "cache_aware",
            "dynamo_kv",
            "endpoint_picker",
            "kv_aware",
            "prefix_aware",
            "prefix_cache",
        )
    )


def test_pages_have_the_tables_of_policies() -> None:
    assert generate_policies.main(["--check"]) == 0


def test_the_page_describes_every_router() -> None:
    """In a row of the tables of what each takes, which say more than a declaration does."""
    page = (generate_policies.DOCS / "cluster.md").read_text(encoding="utf-8")
    tables = [table.split("\n\n")[0] for table in re.split(r"\| policy \|(?: of \|)? takes \|\n", page)[1:]]
    described = [
        name for table in tables for row in table.splitlines()[1:] for name in re.findall(r"`(\w+)`", row.split("|")[1])
    ]
    assert sorted(described) == sorted(ROUTERS)


def test_what_a_router_sees_is_known(folder: Path) -> None:
    (folder / "first_up.py").write_text("ROUTER = RouterPolicy('The first.', sees=('the future',))\n")
    with pytest.raises(TypeError, match=r"sees: expected requests, .*, got the future"):
        _read()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of router policies."""
    monkeypatch.setattr(registry, "_PACKAGE", tmp_path)
    (tmp_path / "routers").mkdir()
    return tmp_path / "routers"


def _read() -> Registry[policies.RouterPolicy]:
    return policies.read_policies("routers", policies.RouterPolicy, "ROUTER")


def test_a_file_is_all_that_a_policy_needs(folder: Path) -> None:
    (folder / "__init__.py").touch()
    (folder / "first_up.py").write_text(
        "from somewhere import nothing_that_exists\n\n"
        "ROUTER = RouterPolicy('The first.', parameters=(Parameter('spread', 2, 'of load.', at_least=1),))\n"
    )
    registry = _read()
    assert list(registry) == ["first_up"]
    assert registry.parameters() == {"spread": Parameter("spread", 2, "first_up: of load.", at_least=1)}
    assert registry.modules["first_up"].endswith(".routers.first_up")


def test_a_file_without_a_declaration_is_named(folder: Path) -> None:
    (folder / "first_up.py").write_text("def choose(): ...\n")
    with pytest.raises(TypeError, match=r"first_up\.py: expected a line 'ROUTER = RouterPolicy"):
        _read()


def test_policies_that_share_a_parameter_agree_on_it(folder: Path) -> None:
    for name, default in (("a", 1), ("b", 2)):
        (folder / f"{name}.py").write_text(
            f"ROUTER = RouterPolicy('One.', parameters=(Parameter('spread', {default}, 'of load.'),))\n"
        )
    with pytest.raises(TypeError, match="default of spread differs"):
        _read()
