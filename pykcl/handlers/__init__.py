"""Handlers that are no record processors: functions, programs that iterate, Lambda functions, and filters before them.

Built on `RecordProcessor`: a handler's adapter is called by the worker like any other processor. May import what the
worker may, and the worker; never `aws`.
"""
