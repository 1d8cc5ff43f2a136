"""Digests of jobs, by which journals recognise simulations: fields added to deployments later do not change them."""

import json
import subprocess
import sys
from pathlib import Path

import pandas as pd
from pydantic import create_model

from hisearch.search.model.job import Job, job_digest
from hisearch.specs.deployments.deployment import DeploymentSpec, EngineSpec, PoolSpec
from hisearch.specs.deployments.routing import RouterSpec
from hisearch.specs.deployments.tiers import TierSpec
from tests.cli.conftest import Hisearch, hisearch, workdir  # noqa: F401 - fixtures
from tests.search.fakes import make_deployment

DETAILED = DeploymentSpec(
    model="toy-model",
    pools=[
        PoolSpec(
            accelerator="fast",
            replicas=3,
            tensor_parallel=2,
            engine=EngineSpec(name="sglang", chunk_tokens=4096, memory_fraction=0.88),
            tiers=[TierSpec(medium="ddr5", gib=64.0)],
        )
    ],
    router=RouterSpec(policy="cache_aware", cache_threshold=0.5),
)


def test_digests_are_those_of_earlier_versions() -> None:
    """A changed digest orphans every journal: a new field of deployments needs a default that keeps digests."""
    assert (
        Job(2, make_deployment()).digest("inputs") == "18415f219d8c2b9e7fe0c3ed0396ab58500aefff38bef40a25e171c9a0afdaed"
    )
    assert (
        Job(3, DETAILED, load=1.5, slice_fraction=0.25).digest("inputs")
        == "0f6450faf1f1836512731df936129f54d3ff16a98fccf88b3dcfe6954deda6e5"
    )


def test_defaults_are_those_of_earlier_versions() -> None:
    """A digest implies the defaults of its time: another default would make it another deployment."""
    pool = {"replicas": 2, "tensor_parallel": 1, "kv_dtype": "bf16"}
    engine = {"chunk_tokens": 8192, "max_running_requests": 256, "memory_fraction": 0.9, "eviction": "lru"}
    router = {"cache_threshold": 0.3, "balance_abs_threshold": 64, "balance_rel_threshold": 1.5}
    document = make_deployment().model_dump(mode="json")
    assert document["router"]["policy"] == "round_robin"
    assert {key: getattr(RouterSpec(policy="cache_aware"), key) for key in router} == router
    assert {key: document["pools"][0]["engine"][key] for key in engine} == engine
    assert {key: document["pools"][0][key] for key in pool} == pool


def test_a_field_that_is_added_later_changes_no_digest_unless_it_is_set() -> None:
    router = create_model("Later", __base__=RouterSpec, later_s=(float, 1.0))
    later = create_model("LaterDeployment", __base__=DeploymentSpec, router=(router, router()))
    data = DETAILED.model_dump(mode="json")
    assert Job(2, later.model_validate(data)).digest("i") == Job(2, DETAILED).digest("i")
    data["router"]["later_s"] = 2.0
    assert Job(2, later.model_validate(data)).digest("i") != Job(2, DETAILED).digest("i")


#: ``hisearch`` as of a version in which routers have one field more.
LATER = """
import sys
from hisearch.specs.deployments import routing
assert "hisearch.specs.deployments.deployment" not in sys.modules
class RouterSpec(routing.RouterSpec):
    later_s: float = 1.0
routing.RouterSpec = RouterSpec
from hisearch.specs.deployments.deployment import DeploymentSpec
made = DeploymentSpec(model="m", pools=[{"accelerator": "a", "engine": {"name": "vllm"}}])
assert made.router.later_s == 1.0
from hisearch.cli.main import main
for arguments in sys.argv[1:]:
    try:
        main(arguments.split())
    except SystemExit as ended:
        if ended.code:
            raise
"""


def test_a_run_of_before_a_field_was_added_resumes_and_is_reported(hisearch: Hisearch, workdir: Path) -> None:  # noqa: F811
    assert hisearch("run", "small.yaml", "--out", "r", "-q", "--set", "spec.budget.simulations=5").code == 0
    report = (workdir / "r" / "report.html").read_bytes()
    calls = ["report r --out later.html", "run --resume r --json -q"]
    done = subprocess.run([sys.executable, "-c", LATER, *calls], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (workdir / "later.html").read_bytes() == report
    assert json.loads(done.stdout[done.stdout.index("{") :])["replayed"] == 5


def test_a_run_whose_journal_has_digests_of_all_fields_is_reported(hisearch: Hisearch, workdir: Path) -> None:  # noqa: F811
    """Journals from before digests omitted defaults, of a deployment that had fewer fields."""
    assert hisearch("run", "small.yaml", "--out", "r", "-q", "--set", "spec.budget.simulations=5").code == 0
    report = (workdir / "r" / "report.html").read_bytes()
    journal, table = workdir / "r" / "journal.jsonl", workdir / "r" / "trials.parquet"
    inputs = json.loads(journal.read_text().splitlines()[0])["inputs"]
    frame, keys = pd.read_parquet(table), {}
    for row, text in enumerate(frame["deployment"]):
        deployment = json.loads(text)
        new = Job(2, DeploymentSpec.model_validate(deployment), {}, frame["slice_fraction"][row], frame["load"][row])
        del deployment["admission"]
        frame.loc[row, "deployment"] = json.dumps(deployment)
        keys[new.digest(inputs)] = job_digest(deployment, new.slice_fraction, new.load, inputs)
    frame.to_parquet(table, index=False)
    text = journal.read_text()
    for new_key, old_key in keys.items():
        assert new_key in text
        text = text.replace(new_key, old_key)
    journal.write_text(text)
    assert hisearch("report", "r").code == 0
    assert (workdir / "r" / "report.html").read_bytes() == report
