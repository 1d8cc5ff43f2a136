"""S3-FIFO's small queue, second chances and memory, slow and obvious (Yang et al. 2023, Algorithm 1).

Runs are the objects; the ghost queue remembers pages, as in ``arc_reference``.
"""

from __future__ import annotations

from tests.kernels.arc_reference import Page

NOWHERE, REMEMBERED = 0, 1


class S3Fifo:
    """The ghost queue, for a store of a given number of pages; a share of them holds new pages."""

    def __init__(self, capacity_pages: int, page: int, small_share: float) -> None:
        self.page = page
        self.small_pages = max(1.0, small_share * capacity_pages)
        self.most_ghosts = capacity_pages - self.small_pages
        self.clock = 0
        #: Ghosts, with the time when they, or an adjacent ghost, were evicted.
        self.ghosts: dict[Page, int] = {}

    def recall(self, page: Page) -> int:
        """A page comes that is not held: whether it is remembered, and no longer is."""
        return REMEMBERED if self.ghosts.pop(page, None) is not None else NOWHERE

    def moves_on(self, uses: int) -> bool:
        """Nothing moves before its turn has come."""
        return False

    def goes_first(self, once: int, recalled: int) -> bool:
        """Whether a page of the main queue goes first; ``once``: size of the small one."""
        return once < self.small_pages

    def remember(self, page: Page, often: bool) -> None:
        """A page has gone from the small queue, or from the main one."""
        if often:
            return
        self.clock += 1
        self.ghosts[page] = self.clock
        for step in (-self.page, self.page):
            at = page[1] + step
            while (page[0], at) in self.ghosts:
                self.ghosts[page[0], at] = self.clock
                at += step

    def forget(self, once: int, held: int) -> None:
        """A page has come: the queue remembers at most as many as the main queue can hold."""
        while len(self.ghosts) > self.most_ghosts:
            oldest = min(self.ghosts.values())
            del self.ghosts[max(page for page, at in self.ghosts.items() if at == oldest)]
