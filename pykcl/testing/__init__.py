"""Public testing kit: an in-memory DynamoDB that evaluates real requests, scenario files, a manual clock.

May import everything but `cli`; nothing but `cli/demo` may import it.
"""
