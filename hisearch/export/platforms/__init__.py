"""Platforms, a module each: ``PLATFORM`` declares it, ``files(export)`` returns its files; see ``registry``.

``files`` raises ExportError where the platform lacks something that the deployment needs.

Imports ``engines`` and ``servers``.
"""
