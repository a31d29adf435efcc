"""Enhanced fan-out: the consumer of a stream, and the records that SubscribeToShard pushes to it.

Sends through botocore's client of Kinesis, or over HTTP/2 what botocore has signed. May import what pykcl/aws may.
"""
