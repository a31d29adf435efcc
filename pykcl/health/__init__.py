"""Health of a worker: whether it lives, works and is in time, over HTTP, in a file, in the log.

Knows the values of `status` and nothing of the worker itself; may import `status`, `errors` and, for what a command
offers, nothing else. It has threads, sockets and a clock of its own, in real time: it checks the worker from outside,
no record waits for it, and no simulation contains it.
"""
