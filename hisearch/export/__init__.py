"""The chosen deployment as launch scripts of the serving engines.

``deployment``, ``several`` and ``wide`` write folders: one pool, several pools, replicas wider than a host.
``engines`` has their flags, ``platforms`` Compose, Kubernetes, llm-d and Dynamo. ``expressible`` checks a deployment
without writing.
Imports ``report`` and what is below it; ``api`` imports from here.
"""
