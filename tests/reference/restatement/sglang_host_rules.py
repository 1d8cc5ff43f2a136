"""What HiCache's settings come to: thresholds of writes, limits and deadlines of prefetches."""

from __future__ import annotations

from hisearch.validate.hicache_settings import HostTierConfig, StorageConfig

#: Share of the host pool's size beyond the device's that prefetches may occupy together.
PREFETCH_SHARE = 0.8
#: Share of the host pool from release 0.5.20 on.
PREFETCH_SHARE_BY_HITS = 0.5


def write_threshold(config: HostTierConfig) -> int:
    """Hits at which a node is copied; ``write_back`` does not count them."""
    return 1 if config.write_policy == "write_through" else 2


def prefetch_limit_tokens(config: HostTierConfig, device_tokens: int, page_size: int, by_hits: bool) -> int:
    """No prefetch is begun while those under way occupy this much, or by hits look for it."""
    host_tokens = config.host_tokens(device_tokens, page_size)
    if by_hits:
        return int(PREFETCH_SHARE_BY_HITS * host_tokens)
    return int(PREFETCH_SHARE * (host_tokens - device_tokens))


def timeout_s(config: StorageConfig, tokens: int) -> float:
    """Longest wait of ``timeout`` for ``tokens`` hit tokens (0 while the query is under way)."""
    return config.prefetch_timeout_base_s + tokens / 1024 * config.prefetch_timeout_per_ki_token_s


def wait_s(config: StorageConfig, pages: int, page_size: int) -> float:
    """The same from release 0.5.20 on, for ``pages`` looked up."""
    return config.prefetch_timeout_base_s + pages * (page_size / 1024 * config.prefetch_timeout_per_ki_token_s)
