"""A stand-in for aiconfigurator-core: its interface, with a law of its own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

HANDLE = '''
from pathlib import Path

MADE = Path(__file__).with_name("made.txt")


class EngineHandle:
    """Milliseconds: 5 + 0.01 a token, 1e-6 a pair of attention, 1e-4 a token of context."""

    @classmethod
    def compile(cls, model, system, backend, **settings):
        if system == "l40s":
            from aiconfigurator_core.sdk.errors import PerfDataNotAvailableError

            raise PerfDataNotAvailableError("no tables of l40s")
        with MADE.open("a") as file:
            file.write(f"{model} {system} {backend} {sorted(settings.items())}\\n")
        return cls()

    def mixed_step_breakdown(self, tokens, decodes, length, outputs, cached=0):
        others, attention = 5 + 0.01 * tokens, 1e-6 * tokens * (cached + (tokens + 1) / 2)
        return others + attention, others, attention, 0.0

    def decode_step_latency(self, decodes, length, outputs):
        return 5 + 0.01 * decodes + 1e-4 * decodes * length

    def mixed_step_breakdown_per_op(self, tokens, decodes, length, outputs, cached=0):
        return [("gemm", 8.0, 0.0, "silicon")], [("norm", 2.0, 0.0, "empirical")], []
'''


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, version: str = "0.12.0") -> Path:
    """Put the package where imports and metadata find it; return the file that records what was compiled."""
    package = folder / "aiconfigurator_core"
    (package / "sdk").mkdir(parents=True)
    (package / "model_configs").mkdir()
    for name in ("Qwen--Qwen3-32B_config.json", "Qwen--Qwen3-30B-A3B_config.json"):
        (package / "model_configs" / name).write_text("{}")
    (package / "__init__.py").write_text("")
    (package / "sdk" / "__init__.py").write_text(HANDLE)
    (package / "sdk" / "errors.py").write_text("class PerfDataNotAvailableError(RuntimeError): ...\n")
    metadata = folder / f"aiconfigurator_core-{version}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: aiconfigurator-core\nVersion: {version}\n")
    for name in [name for name in sys.modules if name.partition(".")[0] == "aiconfigurator_core"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("HISEARCH_CACHE_DIR", str(folder / "cache"))
    return package / "sdk" / "made.txt"


AGGREGATED = {
    "config.py": "from types import SimpleNamespace as RuntimeConfig\n",
    "config_builders.py": "def build_model_config(**settings):\n    return settings\n",
    "models.py": "def get_model(name, config, backend):\n    return name, config['tp_size']\n",
    "perf_database.py": "def get_database(system, backend, version):\n    return system, version\n",
    "backends/__init__.py": "",
    "backends/factory.py": '''
class Result(dict):
    get_result_dict = dict.copy


class Backend:
    """TTFT of 1 ms a prompt token, TPOT of 0.1 ms a request in flight and rank."""

    def run_agg(self, model, database, wanted, ctx_tokens):
        assert database[1] == "current"
        return Result(ttft=float(ctx_tokens), tpot=0.1 * wanted.batch_size * model[1])


def get_backend(name):
    return Backend()
''',
}


def install_aggregated(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``install`` with what the aggregated estimate needs."""
    install(folder, monkeypatch)
    for name, text in AGGREGATED.items():
        path = folder / "aiconfigurator_core" / "sdk" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
