"""A recording's settings of SGLang's host and storage tiers (HiCache), with the laws of their copies."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hisearch.base.policies import PREFETCHES, WRITE_POLICIES

#: Settings of timeout by SGLang's names, and as its declaration names them.
_TIMEOUTS = {
    "prefetch_timeout_base": "prefetch_timeout_base_s",
    "prefetch_timeout_per_ki_token": "prefetch_timeout_s_per_ki_token",
}


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
        prefetch_threshold: tokens; fewer are not prefetched.
        parameters: of the prefetch policy, by name; defaults may be absent.
    """

    query_s: float
    read: CopyLaw
    write: CopyLaw
    prefetch_policy: str = "best_effort"
    prefetch_threshold: int = 256
    parameters: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class HostTierConfig:
    """The host tier.

    Attributes:
        ratio: host pool over device pool.
        write_policy: when a node is copied to the host.
        to_host, to_device: laws of the two copy streams.
        parameters: of the write policy, by name; defaults may be absent.
        storage: None without a storage tier.
    """

    ratio: float
    write_policy: str
    to_host: CopyLaw
    to_device: CopyLaw
    storage: StorageConfig | None = None
    parameters: tuple[tuple[str, float], ...] = ()

    @classmethod
    def from_recording(cls, hicache: Mapping[str, Any]) -> HostTierConfig:
        """``config.hicache`` of a recorded case; absent prefetch settings are the engine's defaults.

        Raises:
            ValueError: a setting is missing, unknown or unusable; names it.
        """
        settings = _Settings("hicache", hicache)
        config = cls(
            ratio=settings.number("hicache_ratio"),
            write_policy=settings.choice("hicache_write_policy", tuple(WRITE_POLICIES)),
            to_host=settings.law("d2h"),
            to_device=settings.law("h2d"),
            storage=_storage(settings),
        )
        settings.expect_empty()
        return config

    def host_tokens(self, device_tokens: int, page_size: int) -> int:
        """Host pool in whole pages, one more than by the ratio."""
        return (int(device_tokens * self.ratio) // page_size + 1) * page_size


def _storage(settings: _Settings) -> StorageConfig | None:
    default = StorageConfig(0.0, CopyLaw(0.0, 0.0), CopyLaw(0.0, 0.0))
    policy = settings.choice("hicache_storage_prefetch_policy", tuple(PREFETCHES), default=default.prefetch_policy)
    threshold = settings.number("prefetch_threshold", default=default.prefetch_threshold)
    defaults: Mapping[str, Any] = PREFETCHES.given_values(())
    parameters = tuple((name, settings.number(key, default=defaults[name])) for key, name in _TIMEOUTS.items())
    laws = settings.section("storage")
    if laws is None:
        return None
    query_s, read, write = laws.number("query_s"), laws.law("read"), laws.law("write")
    laws.expect_empty()
    return StorageConfig(query_s, read, write, policy, int(threshold), parameters)


class _Settings:
    """Settings that are removed one by one, so that unknown ones remain."""

    def __init__(self, name: str, values: Mapping[str, Any]) -> None:
        self._name = name
        self._remaining = dict(values)

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number, not negative."""
        value = self._take(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
            raise ValueError(f"{self._name}.{key}: expected a finite number >= 0, got {value!r}")
        return value

    def choice(self, key: str, choices: tuple[str, ...], default: str | None = None) -> Any:
        """One of ``choices``."""
        value = self._take(key, default)
        if value not in choices:
            raise ValueError(f"{self._name}.{key}: expected one of {', '.join(choices)}, got {value!r}")
        return value

    def law(self, prefix: str) -> CopyLaw:
        """``<prefix>_base_s`` and ``<prefix>_per_token_s``."""
        return CopyLaw(self.number(f"{prefix}_base_s"), self.number(f"{prefix}_per_token_s"))

    def section(self, key: str) -> _Settings | None:
        """Settings below a key; None where it is absent."""
        values = self._remaining.pop(key, None)
        if values is None:
            return None
        if not isinstance(values, Mapping):
            raise ValueError(f"{self._name}.{key}: expected settings, got {values!r}")
        return _Settings(f"{self._name}.{key}", values)

    def expect_empty(self) -> None:
        """Refuse remaining settings."""
        if self._remaining:
            raise ValueError(f"{self._name}.{min(self._remaining)}: not simulated")

    def _take(self, key: str, default: Any) -> Any:
        value = self._remaining.pop(key, default)
        if value is None:
            raise ValueError(f"{self._name}.{key}: required, and missing")
        return value
