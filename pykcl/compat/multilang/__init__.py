"""A MultiLangDaemon: one child process per lease, in any language, spoken to in JSON lines.

`protocol` is pure; `children` and `pipes` run processes, with threads and clocks of their own, because processes keep
no simulated time; `processor` is the RecordProcessor that stands for a child. They know the worker only by its
interfaces, and import nothing of cli, local and testing.
"""
