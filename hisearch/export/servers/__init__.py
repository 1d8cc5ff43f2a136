"""Servers of an export: their hosts, roles and containers, and the front that clients talk to.

Imports ``engines``.
"""
