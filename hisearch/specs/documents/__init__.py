"""Files: the catalogue, documents of every kind, and studies and deployments with every reference resolved.

Imports all kinds.
"""
