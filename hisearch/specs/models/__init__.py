"""Kind ``Model``: the architecture of a model, its pages and experts; ONNX graphs.

Imports the foundations of ``specs`` alone.
"""
