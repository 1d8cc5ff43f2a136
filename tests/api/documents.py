"""A study small enough to run in a test."""

STUDY = """\
apiVersion: hisearch/v1
kind: Study
metadata: {name: small}
spec:
  model: llama-3.1-8b
  workload:
    trace:
      generator:
        requests: 200
        arrivals: {process: poisson, rate_rps: 20.0}
        first_input: {distribution: lognormal, mean_log: 6.0, sigma_log: 0.5, max_tokens: 4000}
        output: {distribution: constant, scale_tokens: 40}
  slo:
    terms:
      - {metric: ttft_s, percentile: 99, at_most_s: 1.0}
      - {metric: tpot_s, percentile: 99, at_most_s: 0.1}
  space:
    execution:
      accelerators: [h100-sxm, l40s]
      engines: [sglang, vllm]
      tensor_parallel: [1]
      chunk_tokens: [2048]
      max_running_requests: [128]
      max_replicas: 8
    cache: {tiers: [{media: [ddr5], gib: [0, 64]}]}
  budget: {simulations: 40, seconds: 300}
"""
