"""The doctor: is everything as one worker, and its fleet, need it? It only reads.

`gathering` asks AWS and this process, and makes `facts` of the answers. Each `check_*` module is a set of pure
functions from facts to findings; `diagnosis` runs them all. May import what `operate` may: no terminal, no click.
"""
