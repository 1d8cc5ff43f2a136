"""Files: the catalogue, documents of every kind, and studies and deployments with every reference looked up.

Imports all kinds.
"""
