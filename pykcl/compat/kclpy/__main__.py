"""`python -m pykcl.compat.kclpy APP.py --properties FILE`: a program of amazon_kclpy, unchanged and in this process."""

from pykcl.cli.run import kclpy

kclpy()
