"""Frozen values and their encodings: lease, checkpoint, shard, record, lease row, aggregated record.

Nothing here does I/O, reads a clock or starts a thread; it may import nothing of pykcl but `errors`.
"""
