"""Web page that shows a fleet: who reads which shard, its lag, and what happened; served on this machine.

`poller` reads the lease table, lags and worker pages again and again; `view` turns them into values for the page;
`state_store` keeps them, creates a frame of each change and sends it to browsers. `app` has routes and access checks,
`server` serves them. `static` is the page itself. May import what `operate` may, and the addresses and tokens of
`health`; knows nothing of commands and terminals.
"""
