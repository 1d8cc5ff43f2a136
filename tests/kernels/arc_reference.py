"""Ghost lists and target of the adaptive replacement cache, slow and obvious: lists of pages, oldest eviction first.

The rules of ``kernels.cache.evictions.arc``. Ghosts form runs as held pages do. Adjacent ghosts of one trace-tree node
are all as new as the newest, and the deepest ghost of a run is forgotten first.
"""

from __future__ import annotations

Page = tuple[int, int]
#: Which list a page was recalled from.
NOWHERE, ONCE, OFTEN = 0, 1, 2


class Adaptive:
    """B1, B2 and the target of T1, for a store of a given number of pages."""

    def __init__(self, capacity_pages: int, page: int) -> None:
        self.capacity_pages = capacity_pages
        self.page = page
        self.target = 0.0
        self.clock = 0
        #: Ghosts, with the time when they, or an adjacent ghost, were evicted.
        self.gone: dict[int, dict[Page, int]] = {ONCE: {}, OFTEN: {}}

    def recall(self, page: Page) -> int:
        """A page comes that is not held: remove its ghost and return the ghost's list."""
        once, often = len(self.gone[ONCE]), len(self.gone[OFTEN])
        if page in self.gone[ONCE]:
            self.target = min(self.capacity_pages, self.target + max(1, often / once))
        elif page in self.gone[OFTEN]:
            self.target = max(0, self.target - max(1, once / often))
        else:
            return NOWHERE
        which = ONCE if page in self.gone[ONCE] else OFTEN
        del self.gone[which][page]
        return which

    def moves_on(self, uses: int) -> bool:
        """Whether a run that is used enters T2 at once."""
        return True

    def goes_first(self, once: int, recalled: int) -> bool:
        """Whether a page of T2 goes first; ``once``: size of T1."""
        return not (once >= 1 and (once > self.target or (recalled == OFTEN and once == self.target)))

    def remember(self, page: Page, often: bool) -> None:
        """A page has gone from T1, or from T2."""
        ghosts = self.gone[OFTEN if often else ONCE]
        self.clock += 1
        ghosts[page] = self.clock
        for step in (-self.page, self.page):
            at = page[1] + step
            while (page[0], at) in ghosts:
                ghosts[page[0], at] = self.clock
                at += step

    def forget(self, once: int, held: int) -> None:
        """A page has come; ``held``: pages of T1 and T2."""
        while self.gone[ONCE] and once + len(self.gone[ONCE]) > self.capacity_pages:
            self._forget_ghost(self.gone[ONCE])
        while self.gone[OFTEN] and held + len(self.gone[ONCE]) + len(self.gone[OFTEN]) > 2 * self.capacity_pages:
            self._forget_ghost(self.gone[OFTEN])

    def _forget_ghost(self, ghosts: dict[Page, int]) -> None:
        oldest = min(ghosts.values())
        del ghosts[max(page for page, at in ghosts.items() if at == oldest)]
