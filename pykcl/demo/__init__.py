"""The demo: workers share a local stream and survive a kill, a split, a merge, a stop and a poison record, and lose no
record.

`scenario` does this to the fleet, `workers` are the processes, `producer` puts numbered records, `redrive` brings the
dead letter back, `record_log` has what was delivered, `verdict` compares the two, `view` and `live_view` show it,
`java` brings the Java worker.
May import the worker, the AWS clients and `local`; knows nothing of commands.
"""
