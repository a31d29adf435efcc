"""Backup and reset of checkpoints of any lease table: plan first, then conditional writes, each verified by a read.

`plan` and the planning in `reset` and `backup` are pure; `search` finds positions in shards, and `apply` writes.
"""
