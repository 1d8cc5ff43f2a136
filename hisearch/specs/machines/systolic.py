"""Systolic arrays, as part of an accelerator or a device."""

from __future__ import annotations

from pydantic import Field

from hisearch.specs.base import Count, Fraction, NonNegative, Positive, Strict


class SystolicSpec(Strict):
    """Weight-stationary systolic arrays and a vector unit; the law is in docs/hardware.md."""

    arrays: Count = Field(1, description="Of a device, working side by side.")
    rows: Count = Field(description="Of an array: depth of a product that it takes at once.")
    columns: Count = Field(description="Of an array: outputs that it takes at once.")
    clock_hz: Positive = Field(description="A row of operands enters every cycle.")
    scratchpad_bytes: Positive = Field(description="Holds the activations of a product while its weights pass.")
    vector_flops: Positive = Field(description="Of the vector unit: norms, softmax, activation.")
    bandwidth: Fraction = Field(description="Share of the memory bandwidth that transfers to the scratchpad attain.")
    launch_s: NonNegative = Field(0.0, description="Fixed cost of an operator.")
