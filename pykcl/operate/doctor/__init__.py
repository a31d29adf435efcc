"""The doctor: checks whether a worker, its fleet and its AWS resources are set up correctly. It only reads.

`gather` sends the requests and returns `facts`. `checks` are pure functions from facts to `findings`.
"""
