"""SGLang's radix tree over two pools, for models with sliding ``windows`` or with ``states`` of linear attention.

``unified`` has what both trees share; ``window_requests`` and ``state_requests`` what requests have. Imports ``cache``,
``layout``, ``traffic`` and packages below them.
"""
