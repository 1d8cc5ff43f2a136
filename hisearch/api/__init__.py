"""The Python API: studies, single deployments, workloads by name, stored runs. The command line only calls these."""
