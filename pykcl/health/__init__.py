"""Whether a worker lives, works and is in time, for whoever watches over it: over HTTP, in a file, in the log.

Knows the values of `status` and nothing of the worker itself; may import `status`, `errors` and, for what a command
offers, nothing else. It has threads, sockets and a clock of its own, in real time: it looks at the worker from outside,
no record waits for it, and no simulation contains it.
"""
