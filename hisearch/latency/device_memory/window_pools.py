"""SGLang's two KV pools of a model with sliding windows: of full attention, and of the layers with a window.

    full    tokens that each layer with full attention holds: bytes for KV / (F + ratio * W)
    window  tokens that each layer with a window holds: ratio * full
    F, W    bytes of a token in all layers of the kind; ratio: ``swa_full_tokens_ratio``

Source: SGLang 0.5.23, ``model_executor.pool_configurator.HybridSWAPoolConfigurator``.
"""

from __future__ import annotations

from hisearch.specs.deployments.engine_rules import rules_version
from hisearch.specs.versions import precedes

#: Release by whose rules window pools are simulated.
SINCE = "0.5.23"


def simulates_windows(version: str) -> bool:
    """Whether the rules of SGLang ``version`` for window pools are known."""
    return not precedes(rules_version("sglang", version), SINCE)
