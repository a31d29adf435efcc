"""What the Python programs of this folder write down, as lines of JSON, into the file named by their first argument.

One write per line, so that nothing of it is lost however the program ends.

    {"what": "package", "file": …}                                  where amazon_kclpy was found
    {"what": "initialize", "shard": …, "at": [sequence number, sub-sequence number] or null}
    {"what": "record", "shard": …, "record": [sequence number, sub-sequence number, partition key, data, millis, time]}
    {"what": "checkpoint", "shard": …, "asked": […], "error": null or its value}
    {"what": "batch", "shard": …}                                   process_records returns now
    {"what": "ended" | "lost" | "requested", "shard": …}            and its checkpoint is answered, if it asks for one
"""

import json
import os
import sys

_FILE = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def note(what, **fields):
    os.write(_FILE, (json.dumps({"what": what, **fields}) + "\n").encode())


def first_time(name):
    """True for the first process that asks, whenever it was started."""
    try:
        os.close(os.open(f"{sys.argv[1]}.{name}", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def fields_of(record):
    """Of a record of version 2 or 3, everything it tells."""
    return [
        record.sequence_number,
        record.sub_sequence_number,
        record.partition_key,
        record.data,
        record.timestamp_millis,
        record.approximate_arrival_timestamp.isoformat(),
    ]


def checkpoint(shard, checkpointer, *arguments, **named):
    """Ask, and write down the answer."""
    try:
        checkpointer.checkpoint(*arguments, **named)
        error = None
    except Exception as refused:  # noqa: BLE001 - of whatever type, it is the answer
        error = f"{type(refused).__name__} {getattr(refused, 'value', '')}"
    note("checkpoint", shard=shard, asked=[*arguments, *named.values()], error=error)
    return error
