"""Looking at and steering a fleet from outside: states, lag, lineage, and careful writes, for any KCL lease table.

Library code without a terminal: the commands show what these modules return. May import `planning`, `model`, `aws`,
`config`, `errors`, `events`, `ports` and `runtime`; knows nothing of `worker`, `cli` or `local`.
"""
