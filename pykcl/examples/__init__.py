"""Small programs to start from, inside the package so that `pykcl run pykcl.examples.orders:Orders` works anywhere.

They import public names of pykcl only, as a program of yours would.
"""
