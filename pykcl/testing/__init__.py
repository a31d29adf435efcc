"""Public testing kit: a simulation of threads and time under a seed, an in-memory DynamoDB that evaluates
real requests, whole fleets over both, scenario files.

May import everything but `cli`; nothing but `cli/demo` may import it.
"""
