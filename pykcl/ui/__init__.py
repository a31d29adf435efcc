"""A web page that shows a fleet: who reads which shard, how far behind it is, what happened; served on this machine.

`watching` looks at the lease table again and again, `history` remembers, `edges` tells what happened between two looks,
`frames` makes of it what the page is sent, `guard` and `app` decide who is answered, `server` answers. `static` is the
page itself, as a browser takes it. May import what `operate` may, and the addresses and tokens of `health`; knows
nothing of commands and terminals.
"""
