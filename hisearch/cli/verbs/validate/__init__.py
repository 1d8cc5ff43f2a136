"""``hisearch validate``: ``app`` registers its commands; what is held against recorded truth has a module each.

Imports ``api``, ``validate`` and what is shared in ``cli``; ``cli`` imports ``app`` alone.
"""
