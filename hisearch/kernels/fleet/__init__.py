"""The event loop of a whole fleet.

``cluster`` runs it; ``members`` come and go, ``losses`` befall them, ``admission`` refuses requests;
``compilation`` compiles it and the engines.

Imports everything below; ``simulate`` imports from here.
"""
