"""The largest rate that given accelerators carry within an SLO: candidates, their race, the answer around the winner.

May import everything of ``search`` but its driver and rounds; see ``hisearch.search``.
"""
