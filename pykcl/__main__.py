"""`python -m pykcl …`: the same as `pykcl …`."""

from pykcl.cli.main import main

main(prog_name="pykcl")
