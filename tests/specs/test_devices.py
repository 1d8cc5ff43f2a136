"""Devices blocks in deployments and search spaces: looked up, refused by file, line and key, exported whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from hisearch.api.deployments.deployment import plan_deployment, plan_pool
from hisearch.search.model.deployments import describe, format_devices
from hisearch.specs.documents.catalogue import Catalogue, shipped_root
from hisearch.specs.documents.resolve import load_deployment, load_study
from hisearch.specs.documents.stand_alone import stand_alone
from hisearch.specs.errors import SpecError

TEXT = """\
apiVersion: hisearch/v1
kind: Deployment
metadata: {name: pim}
spec:
  model: llama-3.1-8b
  profile: roofline
  pools:
    - accelerator: a6000
      engine: {name: vllm}
      devices:
        attached: {pim: {device: hbm2-pim}}
        operators:
          decode_attention: pim
"""


def resolved(folder: Path, text: str = TEXT, *settings: str):
    path = folder / "pim.yaml"
    path.write_text(text, encoding="utf-8")
    return load_deployment(path, settings, Catalogue(shipped_root()))


def test_a_device_is_looked_up_and_described(tmp_path):
    deployment = resolved(tmp_path)
    assert set(deployment.hardware.device_specs) == {"hbm2-pim"}
    assert format_devices(deployment.deployment.pool.devices) == "1 hbm2-pim (decode_attention)"
    assert "hbm2-pim" in describe(deployment.deployment)
    assert plan_deployment(deployment).pools[0].plan.kv_capacity_tokens > 1_900_000


def test_an_unknown_device_has_file_line_and_key(tmp_path):
    with pytest.raises(SpecError, match=r"pim.yaml:11: spec.pools.0.devices.attached.pim.device: .*hbm9-pim") as error:
        resolved(tmp_path, TEXT.replace("hbm2-pim", "hbm9-pim"))
    assert error.value.line == 11


def test_an_operator_without_a_law_has_file_line_and_key(tmp_path):
    text = TEXT.replace("decode_attention: pim", "prefill_attention: pim")
    with pytest.raises(SpecError, match="pim has no law for prefill_attention") as error:
        plan_deployment(resolved(tmp_path, text))
    assert error.value.key == "spec.pools.0.devices.operators.prefill_attention"
    assert error.value.line == 13


def test_a_device_of_ones_own_goes_along(tmp_path):
    device_file = tmp_path / "mine.yaml"
    device_file.write_text((shipped_root() / "profiles/devices/hbm2-pim.yaml").read_text().replace("hbm2-pim", "mine"))
    deployment = resolved(tmp_path, TEXT.replace("hbm2-pim", "./mine.yaml"))
    alone = stand_alone(
        deployment.deployment, model=deployment.model, profile=deployment.profile, hardware=deployment.hardware
    )
    assert alone.pool.devices.attached["pim"].device == "mine"
    assert set(alone.definitions.devices) == {"mine"}


def test_workers_with_and_without_devices_are_priced_alike(tmp_path):
    """Measured tables on one side and another law on the other would decide a search by themselves."""
    folder = tmp_path / "spaces"
    folder.mkdir()
    space = (shipped_root() / "spaces" / "pim-cxl-or-gpu.yaml").read_text()
    (folder / "mine.yaml").write_text(
        space.replace("pim-cxl-or-gpu", "mine").replace("profile: auto", "profile: ./measured.yaml")
    )
    tables = (shipped_root() / "profiles" / "latency" / "vllm-tables-rtx-pro-6000.yaml").read_text()
    (folder / "measured.yaml").write_text(
        tables.replace("  estimator: tables\n", "  estimator: tables\n  operators: .\n")
    )
    settings = [f"spec.space={folder / 'mine.yaml'}"]
    with pytest.raises(SpecError, match="name a profile of another estimator") as error:
        load_study("pim-cxl-or-gpu", settings, Catalogue(shipped_root()))
    assert error.value.key == "spec.profile"
    assert error.value.line == space[: space.index("profile: auto")].count("\n") + 1


def test_a_space_of_devices_is_looked_up():
    study = load_study("pim-cxl-or-gpu", [], Catalogue(shipped_root()))
    assert set(study.hardware.device_specs) == {"hbm2-pim", "lpddr5-pim", "cxl2-memory"}


def test_experts_that_do_not_divide_are_refused_by_key(tmp_path):
    path = tmp_path / "deployment.yaml"
    path.write_text(
        "apiVersion: hisearch/v1\nkind: Deployment\nmetadata: {name: experts}\nspec:\n  model: mixtral-8x7b\n"
        "  pools:\n    - accelerator: h100-sxm\n      tensor_parallel: 16\n      expert_parallel: 16\n"
        "      engine: {name: vllm}\n      devices: {experts: {}}\n"
    )
    with pytest.raises(SpecError, match="expert_parallel 16 does not divide experts 8") as error:
        plan_pool(load_deployment(path, catalogue=Catalogue(shipped_root())), 0)
    assert (error.value.key, error.value.line) == ("spec.pools.0.expert_parallel", 9)


def test_a_device_s_operators_lie_beside_it(tmp_path):
    shipped = (shipped_root() / "profiles/devices/hbm2-pim.yaml").read_text(encoding="utf-8")
    (tmp_path / "cards").mkdir()
    (tmp_path / "cards/ours.yaml").write_text(
        shipped.replace("name: hbm2-pim", "name: ours").replace("spec:\n", "spec:\n  operators: ours.csv\n", 1)
    )
    text = TEXT.replace("device: hbm2-pim", "device: cards/ours.yaml")
    with pytest.raises(SpecError, match=r"spec.operators: no folder or file of measured operators at .*ours.csv"):
        resolved(tmp_path, text)
    (tmp_path / "cards/ours.csv").write_text(
        "operator,tokens,context,latency_us,energy_uj\n"
        + "".join(f"decode_attention,{n},{c},1,1\n" for n in (1, 512) for c in (1, 10**6))
    )
    loaded = resolved(tmp_path, text)
    (device,) = loaded.hardware.device_specs.values()
    assert device.operators == str(tmp_path / "cards/ours.csv")
    shipped_plan, plan = plan_pool(resolved(tmp_path), 0).costs, plan_pool(loaded, 0).costs
    assert plan.seconds.decode_s[-1, -1] < shipped_plan.seconds.decode_s[-1, -1]
