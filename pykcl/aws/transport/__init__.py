"""Frequent requests with a tenth of the work: own signature, own HTTP, over connections kept open.

Knows botocore's client from the outside only: `request_template` takes everything from one request that botocore
itself made, and is not used unless our signature of that request is botocore's own. May import what pykcl/aws may.
"""
