"""Autoscaler policies, a file each: what of its workers an autoscaler brings to its target.

To add one: a file that assigns an ``AutoscalerPolicy`` to ``AUTOSCALER`` (see ``base.policies``) and has a kernel
``load(fleet, m)``: how much member ``m``, which takes requests, has of it. ``fleet.members`` adds this up over the
members of a pool, and starts or drains workers as Kubernetes' HorizontalPodAutoscaler does. A policy knows what a
router knows, never how many tokens a request will generate.

Imports ``base``.
"""
