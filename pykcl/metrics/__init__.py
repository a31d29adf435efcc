"""Metrics of a worker, and the sinks that take them: CloudWatch's statistics, Prometheus, OpenTelemetry.

`names` is the catalogue, `meter` what the worker calls; the sinks know nothing of each other. It imports `config`,
`errors`, `events` and `runtime`, and never AWS: what sends to CloudWatch lives in `aws.cloudwatch`.
"""
