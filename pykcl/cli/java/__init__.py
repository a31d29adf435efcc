"""A real worker of Amazon's Java KCL as a process beside ours: its jars, its command line, its other end."""
