"""Node labels by which pods find their accelerators."""

from __future__ import annotations

from hisearch.export.rendering import resource_name

#: Label that NVIDIA's GPU feature discovery gives nodes: the driver's product name, spaces as hyphens
#: (NVIDIA/k8s-device-plugin, docs/gpu-feature-discovery). A time-sliced or partitioned GPU has a suffix, and does not
#: match.
PRODUCT_LABEL = "nvidia.com/gpu.product"
PRODUCTS = {
    "a100-80gb": "NVIDIA-A100-SXM4-80GB",
    "a6000": "NVIDIA-RTX-A6000",
    "b200": "NVIDIA-B200",
    "b300": "NVIDIA-B300-SXM6-AC",
    "gb200": "NVIDIA-GB200",
    "gb300": "NVIDIA-GB300",
    "h100-sxm": "NVIDIA-H100-80GB-HBM3",
    "h20": "NVIDIA-H20",
    "h200": "NVIDIA-H200",
    "l40s": "NVIDIA-L40S",
    "rtx4090": "NVIDIA-GeForce-RTX-4090",
}

#: Label of nodes with any other accelerator, which the user sets.
OWN_LABEL = "hisearch/accelerator"


def node_label(accelerator: str) -> tuple[str, str]:
    """Label and value of nodes with an accelerator of the catalogue, or of the user's own."""
    product = PRODUCTS.get(accelerator)
    return (OWN_LABEL, resource_name(accelerator)) if product is None else (PRODUCT_LABEL, product)
