"""Where replicas run: containers, ports, Compose, Kubernetes, llm-d, Dynamo, one pool or several.

Imports ``engines``.
"""
