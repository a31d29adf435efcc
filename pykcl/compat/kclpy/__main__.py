"""`python -m pykcl.compat.kclpy APP.py --properties FILE`: a program of amazon_kclpy, unchanged and in this process."""

from pykcl.cli import end_by_sigterm

end_by_sigterm()

from pykcl.cli.run import kclpy  # noqa: E402 - the signal may come while it is imported

kclpy()
