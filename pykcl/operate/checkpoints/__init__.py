"""Showing, saving and moving checkpoints of any lease table: the plan first, then fenced writes, then a look at each.

What is decided is decided in pure functions (`reset_plan`, `restore_plan`); `search` finds places in shards, and
`carrying_out` writes. May import what `operate` may; knows nothing of commands and terminals.
"""
