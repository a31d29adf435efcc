"""`python -m pykcl …`: the same as `pykcl …`."""

from pykcl.cli.__main__ import main

main()
