"""SGLang for models with sliding windows, which have a pool of their own: ``tree`` the radix cache, ``requests``.

Imports ``cache``, ``layout``, ``traffic`` and packages below them.
"""
