"""Which worker a request goes to.

``router`` has the policies; ``prefix_index`` is the prefix index of cache_aware, ``outlook`` what a worker really has
cached.

Imports ``engine``, ``vllm`` and what is below them.
"""
