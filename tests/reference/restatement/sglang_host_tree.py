"""SGLang's radix cache with a host tier (``HiRadixCache``): nodes live on the device, on the host, or on both.

A node leaves the device only after all nodes below it, so the device's nodes are closed towards the root. Host pages
are only counted, never named.

Sources: the ``hicache_*`` and ``storage_*`` recordings and the rules noted with them; SGLang 0.5.x ``HiRadixCache``
for the remaining rules.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass

from hisearch.validate.hicache_settings import HostTierConfig
from tests.reference.restatement import sglang_host_rules as rules
from tests.reference.restatement.content import Content
from tests.reference.restatement.sglang_copies import Clock, CopyStream
from tests.reference.restatement.sglang_tree import EvictionPolicy, RadixNode, RadixTree, common_length, eviction_key


@dataclass(frozen=True, eq=False)
class HostMatch:
    """Result of a look-up in both tiers.

    Attributes:
        device_tokens: leading tokens that are on the device.
        device_node: the last node of them.
        host_tokens: tokens behind them that are on the host alone.
        host_node: the deepest node of the path that has a host copy.
    """

    device_tokens: int
    device_node: RadixNode
    host_tokens: int
    host_node: RadixNode


class HostTree(RadixTree):
    """The two-tier cache of one worker.

    Attributes:
        host_tokens, host_free_tokens: tokens of all host pages and of free ones.
        to_host: stream of the copies to the host.
        holds: whether a dated rule holds, see ``hisearch.base.engine_rules``.
        unwritten: nodes that count as copied and wait for the copy to begin.
        cut_off: host nodes whose parent was dropped without a host copy. No look-up reaches them or nodes below them
            any more, but they keep their host memory until they are evicted.
    """

    def __init__(
        self,
        page_size: int,
        policy: EvictionPolicy,
        config: HostTierConfig,
        host_tokens: int,
        clock: Clock,
        holds: Callable[[str], bool],
    ) -> None:
        super().__init__(page_size, policy, keeps_creation=holds("keeps_creation"))
        self.holds = holds
        self.config = config
        self.clock = clock
        self.host_tokens = host_tokens
        self.host_free_tokens = host_tokens
        self.to_host = CopyStream(config.to_host, clock)
        self.cut_off: list[RadixNode] = []
        self.unwritten: list[RadixNode] = []
        self._copied_from: dict[RadixNode, int] = {}
        self._unwritten_tokens = 0
        self.root.on_host = True

    @property
    def total_tokens(self) -> int:
        """Tokens that the tree has on the device."""
        return sum(self.tokens_of(node) for node in self.nodes() if node.on_device)

    @property
    def evictable_tokens(self) -> int:
        """Tokens on the device of nodes without a lock."""
        return sum(self.tokens_of(node) for node in self.nodes() if node.on_device and node.locks == 0)

    # ---- looking up and adding -------------------------------------------------------------------------------------

    def match(self, content: Content, tokens: int) -> tuple[int, RadixNode]:
        """As ``RadixTree.match``, for the device alone."""
        tiers = self.match_tiers(content, tokens)
        return tiers.device_tokens, tiers.device_node

    def match_tiers(self, content: Content, tokens: int) -> HostMatch:
        """Look up the whole pages of the first ``tokens`` tokens in both tiers."""
        end, matched = self._walk(self._keys(content, tokens))
        host_tokens, device_node = 0, end
        while not device_node.on_device:
            host_tokens += self.tokens_of(device_node)
            device_node = _parent(device_node)
        host_node = end
        while not host_node.on_host:
            host_node = _parent(host_node)
        return HostMatch(matched * self.page_size - host_tokens, device_node, host_tokens, host_node)

    def insert(self, content: Content, tokens: int, priority: int, *, counted_from: int | None = 0) -> int:
        """Add the whole pages of the first ``tokens`` tokens; returns how many the device had already.

        Nodes are visited from the root. Each that the device had counts a hit at once, which may copy it to the host,
        which may evict host nodes not yet visited. A host node that was computed again is then on both tiers, and
        counts no hit. Nodes that do not end behind ``counted_from`` count none either; None: no node does.
        """
        keys = self._keys(content, tokens)
        self.tick += 1
        node, at, present = self.root, 0, 0
        while at < len(keys) and keys[at] in node.children:
            node, length = self._step(node, keys, at, priority)
            at += length
            if node.on_device:
                present += length * self.page_size
                self._count_hit(node, at, counted_from)
            node.on_device = True
        if at < len(keys):
            above, node = node, self._new_node(keys[at:], node, priority)
            above.children[keys[at]] = node
            self._count_hit(node, len(keys), counted_from)
        return present

    def insert_host(self, above: RadixNode, content: Content, start: int, tokens: int) -> int:
        """Add host pages of tokens [start, start + tokens) below ``above``, which ends at ``start``.

        Returns:
            Tokens that were in the tree already, on whichever tier; their host pages are not needed. By hits those that
            were on the device alone get the fetched pages as their host copy.
        """
        keys = self.page_keys(content, start, start + tokens)
        self.tick += 1
        node, at, used = above, 0, 0
        node.access_tick = self.tick
        while at < len(keys) and keys[at] in node.children:
            node, length = self._step(node, keys, at, None)
            at += length
            if self.holds("fetches_by_hits") and not node.on_host:
                node.on_host = True
                used += length
        if at < len(keys):
            below = self._new_node(keys[at:], node, node.priority)
            below.on_device, below.on_host = False, True
            node.children[keys[at]] = below
        return (at - used) * self.page_size

    def _step(self, node: RadixNode, keys: Sequence[Hashable], at: int, priority: int | None) -> tuple[RadixNode, int]:
        """Enter the child at ``keys[at]``, split where ``keys`` diverge; returns it and the number of matched pages.

        A partly matched node is touched as a whole before it is split.
        """
        child = node.children[keys[at]]
        child.access_tick = self.tick
        length = common_length(child.pages, keys, at)
        covered = self._split(child, length) if length < len(child.pages) else child
        if priority is not None:
            covered.priority = max(covered.priority, priority)
            if not self.holds("raises_covered"):
                child.priority = max(child.priority, priority)
        return covered, length

    def _split(self, child: RadixNode, at: int) -> RadixNode:
        """Split a node; both parts stay on its tiers. The upper one keeps its hits, the lower one its host locks."""
        upper = super()._split(child, at)
        upper.hits = child.hits
        upper.on_device, upper.on_host = child.on_device, child.on_host
        return upper

    # ---- copying to the host ---------------------------------------------------------------------------------------

    def _count_hit(self, node: RadixNode, end: int, counted_from: int | None) -> None:
        """Count the hit of a node that ends with page ``end``; with enough of them it is copied."""
        if rules.writes_at_eviction(self.config) or counted_from is None or end * self.page_size <= counted_from:
            return
        node.hits += 1
        if node.on_host or not rules.copies(self.config, node.hits):
            return
        chain = [node]
        while self.holds("copies_chains") and not _parent(chain[0]).on_host:
            chain.insert(0, _parent(chain[0]))
        for part in chain:
            if not self._copy_to_host(part):
                return
            self.lock(part, 1)

    def _copy_to_host(self, node: RadixNode) -> bool:
        """Begin a copy, if host memory is available; the node counts as copied from now on.

        From release 0.5.22 on the copy begins later, together with others, unless an eviction waits for it.
        """
        tokens = self.tokens_of(node)
        if not self.take_host(tokens):
            return False
        node.on_host = True
        self._copied_from[node] = self._begin_of(node)
        if self.holds("merges_copies") and not rules.writes_at_eviction(self.config):
            self.unwritten.append(node)
            self._unwritten_tokens += tokens
        else:
            self.to_host.issue(tokens, (node,))
        return True

    def _begin_of(self, node: RadixNode) -> int:
        """Pages above a node."""
        return 0 if node.parent is None else self._begin_of(node.parent) + len(node.parent.pages)

    def copied_parts(self, node: RadixNode) -> list[RadixNode]:
        """What is written to storage of a node that has been copied: itself, by hits also what was split off it."""
        parts = [node]
        while self.holds("fetches_by_hits") and self._begin_of(parts[0]) > self._copied_from[node]:
            parts.insert(0, _parent(parts[0]))
        return parts

    def begin_writing(self) -> None:
        """Begin one copy of all nodes that wait for theirs."""
        if self.unwritten:
            self.to_host.issue(self._unwritten_tokens, tuple(self.unwritten))
            self.unwritten, self._unwritten_tokens = [], 0

    def take_written(self) -> list[RadixNode]:
        """Unlock the nodes whose copies are done by now, and return them."""
        written = [node for copy in self.to_host.take_finished() for node in copy.nodes]
        for node in written:
            self.lock(node, -1)
        return written

    def take_host(self, tokens: int) -> bool:
        """Take host pages; if too few are free, what is missing is evicted first, before 0.5.17 *all* of ``tokens``."""
        if self.host_free_tokens < tokens:
            self.evict_host(tokens - self.host_free_tokens if self.holds("evicts_shortfall") else tokens)
        if self.host_free_tokens < tokens:
            return False
        self.host_free_tokens -= tokens
        return True

    # ---- evicting --------------------------------------------------------------------------------------------------

    def evict_host(self, tokens: int) -> None:
        """Evict leaves that are on the host alone until at least ``tokens`` are evicted or no leaf is left."""
        evicted = 0
        while evicted < tokens:
            leaves = [node for node in self._host_nodes() if not node.children and node.host_locks == 0]
            if not leaves:
                break
            victim = min(leaves, key=lambda node: eviction_key(self.policy, node))
            evicted += self.tokens_of(victim)
            self._drop_from_host(victim)

    def _drop_from_host(self, leaf: RadixNode) -> None:
        if leaf in self.cut_off:
            self.cut_off.remove(leaf)
        else:
            del _parent(leaf).children[leaf.pages[0]]
        self.host_free_tokens += self.tokens_of(leaf)

    def _host_nodes(self) -> Iterator[RadixNode]:
        """All nodes that are on the host alone, also those that were cut off."""
        yield from (node for node in self.nodes() if not node.on_device)
        stack = list(self.cut_off)
        while stack:
            node = stack.pop()
            stack.extend(node.children.values())
            yield node

    @property
    def host_held_tokens(self) -> int:
        """Tokens of the host copies of nodes, cut-off ones included."""
        on_both_tiers = (node for node in self.nodes() if node.on_host and node.on_device)
        return sum(map(self.tokens_of, on_both_tiers)) + sum(map(self.tokens_of, self._host_nodes()))

    def evict(self, tokens: int) -> int:
        """Evict device leaves until at least ``tokens`` are evicted or no leaf is left; returns how many.

        A node with a host copy stays in the tree. One without is dropped. With ``write_back`` it is copied first, and
        all such copies of one eviction are waited for at its end. From release 0.5.22 on each is waited for by itself,
        and a node for which the host has no memory is dropped with all below it.
        """
        evicted = 0
        copied: list[RadixNode] = []
        uncopied: set[RadixNode] = set()
        while evicted < tokens:
            leaves = [node for node in self.nodes() if self._is_device_leaf(node, copied) and node not in uncopied]
            if not leaves:
                break
            victim = min(leaves, key=lambda node: eviction_key(self.policy, node))
            if victim.on_host:
                victim.on_device = False
            elif not rules.writes_at_eviction(self.config):
                del _parent(victim).children[victim.pages[0]]
                self.cut_off.extend(victim.children.values())
            elif self._copy_to_host(victim):
                copied.append(victim)
                if self.holds("merges_copies"):
                    self._await_copies(copied)
                    copied = []
            elif self.holds("merges_copies") and self._drop_children(victim):
                del _parent(victim).children[victim.pages[0]]
            else:
                uncopied.add(victim)
                continue
            evicted += self.tokens_of(victim)
        if copied:
            self._await_copies(copied)
        self.evicted_tokens += evicted
        return evicted

    def _drop_children(self, node: RadixNode) -> bool:
        """Drop all host nodes below a node; False if one of them is in use, which stays with those above it."""
        while node.children:
            below = [other for other in self.nodes() if not other.children and _is_below(other, node)]
            free = [leaf for leaf in below if leaf.host_locks == 0]
            if not free:
                return False
            self._drop_from_host(free[0])
        return True

    def _is_device_leaf(self, node: RadixNode, leaving: list[RadixNode]) -> bool:
        return (
            node.on_device
            and node.locks == 0
            and node not in leaving
            and not any(child.on_device and child not in leaving for child in node.children.values())
        )

    def _await_copies(self, copied: list[RadixNode]) -> None:
        self.clock.now_s = max(self.clock.now_s, self.to_host.last_end_s)
        self.to_host.take_finished()
        for node in copied:
            node.on_device = False


def _is_below(node: RadixNode, above: RadixNode) -> bool:
    parent = node.parent
    while parent is not None and parent is not above:
        parent = parent.parent
    return parent is above


def _parent(node: RadixNode) -> RadixNode:
    assert node.parent is not None
    return node.parent
