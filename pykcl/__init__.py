"""pykcl: the Kinesis Client Library in pure Python, on the same lease table as Amazon's Java KCL 2.x."""

__version__ = "0.1.0"
