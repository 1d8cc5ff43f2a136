"""Documents small enough to run in a test."""

GENERATOR = """\
      generator:
        requests: {requests}
        arrivals: {{process: poisson, rate_rps: 20.0}}
        first_input: {{distribution: lognormal, mean_log: 6.0, sigma_log: 0.5, max_tokens: 4000}}
        output: {{distribution: constant, scale_tokens: 40}}
"""

#: Few checks of the answer: they are most of a small study's work.
FEW_CHECKS = "  confidence: {draws: 8, candidate_draws: 2, fresh_draws: 8, what_if: 0}\n"

STUDY = f"""\
apiVersion: hisearch/v1
kind: Study
metadata: {{name: small}}
spec:
  model: llama-3.1-8b
  workload:
    trace:
{GENERATOR.format(requests=200)}
  slo:
    terms:
      - {{metric: ttft_s, percentile: 99, at_most_s: 1.0}}
      - {{metric: tpot_s, percentile: 99, at_most_s: 0.1}}
  space:
    execution:
      accelerators: [h100-sxm, l40s]
      engines: [sglang, vllm]
      tensor_parallel: [1]
      chunk_tokens: [2048]
      max_running_requests: [128]
      max_replicas: 4
    cache: {{tiers: []}}
  budget: {{simulations: 24, seconds: 300}}
{FEW_CHECKS}"""

#: The same with all checks of the answer, of requests fewer and longer, so that they are quick.
CHECKED_STUDY = (
    STUDY.replace(FEW_CHECKS, "")
    .replace("rate_rps: 20.0", "rate_rps: 4.0")
    .replace("mean_log: 6.0", "mean_log: 7.3")
    .replace("scale_tokens: 40", "scale_tokens: 200")
)

DEPLOYMENT = """\
apiVersion: hisearch/v1
kind: Deployment
metadata: {name: pair}
spec:
  model: llama-3.1-8b
  pools:
    - accelerator: h100-sxm
      replicas: 2
      engine: {name: vllm, chunk_tokens: 2048, max_running_requests: 128}
  router: {policy: round_robin}
"""

WORKLOAD = """\
apiVersion: hisearch/v1
kind: Workload
metadata: {name: visits}
spec:
  generator:
    requests: 120
    arrivals: {process: poisson, rate_rps: 10.0}
    first_input: {distribution: constant, scale_tokens: 400}
    output: {distribution: constant, scale_tokens: 20}
    sessions:
      continue_probability: [0.5]
      think: {p50_s: 1.0, p90_s: 3.0}
"""
