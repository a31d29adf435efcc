"""Lease tables outside of DynamoDB."""
