"""What ``hisearch doctor`` finds without running anything.

Imports ``documents`` and all kinds.
"""
