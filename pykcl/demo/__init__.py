"""The demo: workers share a local stream and survive a kill, a split, a merge and a stop, and no record is lost.

`scenario` does this to the fleet, `workers` are the processes, `producer` puts numbered records, `record_log` has what
the workers delivered, `verdict` compares the two, `view` and `live_view` show it, `java` brings the Java worker.
May import the worker, the AWS clients and `local`; knows nothing of commands.
"""
