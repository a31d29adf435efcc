"""The embedded local AWS for demos and tests: our own Kinesis, moto's DynamoDB and CloudWatch, one loopback port.

`stream.py` is the in-memory stream model, usable without a socket; the rest is its wire. May import `model` only.
"""
