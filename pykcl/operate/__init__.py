"""A fleet from outside, for any KCL lease table: states, lag, lineage, and conditional writes.

Library code without a terminal: the commands show the results of these modules. May import `planning`, `model`, `aws`,
`config`, `errors`, `events`, `ports`, `runtime` and `times`; not `worker`, `cli` or `local`.
"""
