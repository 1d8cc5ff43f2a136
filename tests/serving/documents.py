"""The tiny Llama, this machine and a deployment of them, as hisearch's documents."""

from __future__ import annotations

from pathlib import Path

from tests.serving.environment import VERSION
from tests.serving.make_model import CONFIG

_SOURCE = "{source: made for this test, as_of: 2026-11-01}"
MODEL = f"""\
apiVersion: hisearch/v1
kind: Model
metadata: {{name: tiny}}
spec:
  huggingface_id: test/tiny
  layers: {CONFIG["num_hidden_layers"]}
  hidden_size: {CONFIG["hidden_size"]}
  attention_heads: {CONFIG["num_attention_heads"]}
  kv_heads: {CONFIG["num_key_value_heads"]}
  head_dim: {CONFIG["head_dim"]}
  intermediate_size: {CONFIG["intermediate_size"]}
  vocab_size: {CONFIG["vocab_size"]}
  max_context_tokens: {CONFIG["max_position_embeddings"]}
  provenance: {_SOURCE}
"""
#: A stand-in for a core: its rates are used by nothing but the check of the split and the plan of memory.
ACCELERATOR = f"""\
apiVersion: hisearch/v1
kind: Accelerator
metadata: {{name: core}}
spec:
  memory_bytes: 1.5e9
  memory_bandwidth_bytes_per_s: 10.0e9
  peak_flops: {{bf16: 50.0e9}}
  peer_link: {{kind: pcie, bandwidth_bytes_per_s: 10.0e9, latency_s: 5.0e-6}}
  host_link: {{kind: pcie, bandwidth_bytes_per_s: 10.0e9, latency_s: 5.0e-6}}
  host: workstation-a6000-4
  idle_w: 10
  active_w: 30
  price: {{usd_per_hour: 0.1, evidence: assumed, source: made for this test, as_of: 2026-11-01}}
  provenance: {_SOURCE}
"""
DEPLOYMENT = f"""\
apiVersion: hisearch/v1
kind: Deployment
metadata: {{name: circle}}
spec:
  model: tiny.yaml
  profile: PROFILE
  pools:
    - accelerator: core.yaml
      engine: {{name: vllm, version: {VERSION}, page_tokens: 32, chunk_tokens: 1024, max_running_requests: 16,
               memory_fraction: 0.9, overlap: false}}
"""


def write_documents(folder: Path) -> Path:
    """Write them; the deployment's path, which names no profile yet."""
    (folder / "tiny.yaml").write_text(MODEL)
    (folder / "core.yaml").write_text(ACCELERATOR)
    return write_deployment(folder, "roofline")


def write_deployment(folder: Path, profile: str) -> Path:
    """The deployment with a latency profile."""
    path = folder / "deployment.yaml"
    path.write_text(DEPLOYMENT.replace("PROFILE", profile))
    return path
