"""Streams without a lease table: describe, read and write one, beside any fleet."""
