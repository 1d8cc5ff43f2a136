"""A study small enough to run in a test: that of the command's tests, with a host tier and more replicas."""

from tests.cli import documents

STUDY = (
    documents.STUDY.replace("max_replicas: 4", "max_replicas: 8")
    .replace("cache: {tiers: []}", "cache: {tiers: [{media: [ddr5], gib: [0, 64]}]}")
    .replace("simulations: 24", "simulations: 40")
)
