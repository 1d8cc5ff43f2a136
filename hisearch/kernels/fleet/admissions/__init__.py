"""Admission policies, a file each: which arriving requests are let in; the others are shed at once.

To add one: a file that assigns an ``AdmissionPolicy`` to ``ADMISSION`` (see ``base.policies``) and has a kernel
``admits(fleet, r, now)``. What it declares as parameters and state are fields of ``Fleet.config``. It knows what a
router knows, never how many tokens a request will generate.

Imports ``base``, ``layout`` and ``traffic``.
"""
