"""The only place that imports boto3: the lease table in DynamoDB and the stream in Kinesis.

Implements `ports` over `model`; knows nothing of `planning` or `worker`.
"""
