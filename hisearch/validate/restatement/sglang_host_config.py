"""Settings of SGLang's host and storage tiers (HiCache), with the laws that their copies follow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

WritePolicy = Literal["write_through", "write_through_selective", "write_back"]
PrefetchPolicy = Literal["best_effort", "wait_complete", "timeout"]

#: Share of what the host pool has beyond the device's that prefetches may occupy together.
_PREFETCH_SHARE = 0.8


@dataclass(frozen=True)
class CopyLaw:
    """Time that one copy takes: ``base_s + per_token_s * tokens``."""

    base_s: float
    per_token_s: float

    def seconds(self, tokens: int) -> float:
        """Time to copy ``tokens`` tokens."""
        return self.base_s + self.per_token_s * tokens


@dataclass(frozen=True)
class StorageConfig:
    """The storage tier behind the host; unlimited, empty at the start.

    Attributes:
        query_s: time to learn which pages are stored.
        read, write: one batch of pages, from and to storage.
        prefetch_policy: when a request stops waiting for its prefetch.
        prefetch_threshold: tokens; fewer are not worth a prefetch.
        prefetch_timeout_base_s, prefetch_timeout_per_ki_token_s: longest wait of ``timeout``.
    """

    query_s: float
    read: CopyLaw
    write: CopyLaw
    prefetch_policy: PrefetchPolicy = "best_effort"
    prefetch_threshold: int = 256
    prefetch_timeout_base_s: float = 1.0
    prefetch_timeout_per_ki_token_s: float = 0.25

    def timeout_s(self, tokens: int) -> float:
        """Longest that ``timeout`` waits for ``tokens`` found tokens (0 while the query is under way)."""
        return self.prefetch_timeout_base_s + tokens / 1024 * self.prefetch_timeout_per_ki_token_s


@dataclass(frozen=True)
class HostTierConfig:
    """The host tier.

    Attributes:
        ratio: host pool over device pool.
        write_policy: when a node is copied to the host.
        to_host, to_device: laws of the two copy streams.
        storage: None where there is no storage tier.
    """

    ratio: float
    write_policy: WritePolicy
    to_host: CopyLaw
    to_device: CopyLaw
    storage: StorageConfig | None = None

    @classmethod
    def from_recording(cls, hicache: Mapping[str, Any]) -> HostTierConfig:
        """``config.hicache`` of a recorded case; absent prefetch settings are the engine's defaults.

        Raises:
            ValueError: a setting is missing, unknown or has an unknown value; names it.
        """
        settings = dict(hicache)
        try:
            to_host = CopyLaw(settings.pop("d2h_base_s"), settings.pop("d2h_per_token_s"))
            to_device = CopyLaw(settings.pop("h2d_base_s"), settings.pop("h2d_per_token_s"))
            ratio, write_policy = settings.pop("hicache_ratio"), settings.pop("hicache_write_policy")
            storage = _storage(settings)
        except KeyError as error:
            raise ValueError(f"hicache.{error.args[0]}: required, and missing") from None
        if settings:
            raise ValueError(f"hicache.{min(settings)}: not restated")
        _check_choice("hicache_write_policy", write_policy, ("write_through", "write_through_selective", "write_back"))
        return cls(ratio, write_policy, to_host, to_device, storage)

    @property
    def write_threshold(self) -> int:
        """Hits at which a node is copied; only ``write_back`` does not count them."""
        return 1 if self.write_policy == "write_through" else 2

    def host_tokens(self, device_tokens: int, page_size: int) -> int:
        """Host pool in whole pages, one more than the ratio asks for."""
        return (int(device_tokens * self.ratio) // page_size + 1) * page_size

    def prefetch_limit_tokens(self, device_tokens: int, page_size: int) -> int:
        """No prefetch is begun while those under way occupy this much."""
        return int(_PREFETCH_SHARE * (self.host_tokens(device_tokens, page_size) - device_tokens))


def _storage(settings: dict[str, Any]) -> StorageConfig | None:
    """Take the storage tier's settings out of ``settings``."""
    arguments = {
        "prefetch_policy": "hicache_storage_prefetch_policy",
        "prefetch_threshold": "prefetch_threshold",
        "prefetch_timeout_base_s": "prefetch_timeout_base",
        "prefetch_timeout_per_ki_token_s": "prefetch_timeout_per_ki_token",
    }
    named = {field: settings.pop(name) for field, name in arguments.items() if name in settings}
    laws = settings.pop("storage", None)
    if laws is None:
        return None
    _check_choice(
        "hicache_storage_prefetch_policy",
        named.get("prefetch_policy", "best_effort"),
        ("best_effort", "wait_complete", "timeout"),
    )
    read = CopyLaw(laws["read_base_s"], laws["read_per_token_s"])
    write = CopyLaw(laws["write_base_s"], laws["write_per_token_s"])
    return StorageConfig(laws["query_s"], read, write, **named)


def _check_choice(name: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ValueError(f"hicache.{name}: expected one of {', '.join(known)}, got {value!r}")
