"""Platforms: containers, ports, Compose, Kubernetes, llm-d and Dynamo, for one pool or several.

Imports ``engines``.
"""
