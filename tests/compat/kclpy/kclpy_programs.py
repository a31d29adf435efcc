"""Programs of amazon_kclpy, as their owners would write them: each does what the payload of a record tells it to do.

A payload is a JSON list: ["checkpoint", argument…], ["raise"], ["exit", code], ["print", text] or ["note", anything].
Everything a program is told, and every answer to a checkpoint, is appended to the file named by its first argument.
"""

HEAD = """
import json, os, sys
from amazon_kclpy import kcl

NOTES = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

def note(*what):
    os.write(NOTES, (json.dumps(what) + "\\n").encode())

def checkpoint(checkpointer, *arguments):
    try:
        checkpointer.checkpoint(*arguments)
        note("checkpointed", *arguments)
    except kcl.CheckpointError as error:
        note("refused", error.value, str(error), *arguments)

def obey(record, checkpointer, shard):
    note("record", shard, record.sequence_number, record.sub_sequence_number, record.partition_key, record.data)
    verb, *arguments = json.loads(record.binary_data)
    if verb == "checkpoint":
        checkpoint(checkpointer, *(record.sequence_number if a == "mine" else a for a in arguments))
    elif verb == "raise":
        raise ValueError("asked to")
    elif verb == "raise once" and not os.path.exists(sys.argv[1] + ".raised"):
        open(sys.argv[1] + ".raised", "w").close()
        raise ValueError("asked to, once")
    elif verb == "exit":
        sys.exit(*arguments)
    elif verb == "print":
        print(*arguments)
"""
TAIL = """
if __name__ == "__main__":
    kcl.KCLProcess(RecordProcessor()).run()
    note("the end")
"""

VERSION_1 = (
    HEAD
    + """
class RecordProcessor(kcl.RecordProcessorBase):
    def __init__(self):
        self.seen = 0
    def initialize(self, shard_id):
        self.shard_id = shard_id
        note("initialize", shard_id)
    def process_records(self, records, checkpointer):
        self.seen += len(records)
        note("process_records", self.shard_id, self.seen)
        for record in records:
            obey(record, checkpointer, self.shard_id)
    def shutdown(self, checkpointer, reason):
        note("shutdown", self.shard_id, reason)
        checkpoint(checkpointer)
    def shutdown_requested(self, checkpointer):
        note("shutdown_requested", self.shard_id)
        checkpoint(checkpointer)
"""
    + TAIL
)

VERSION_2 = (
    HEAD
    + """
from amazon_kclpy.v2 import processor

class RecordProcessor(processor.RecordProcessorBase):
    def __init__(self):
        self.seen = 0
    def initialize(self, initialize_input):
        self.shard_id = initialize_input.shard_id
        note("initialize", self.shard_id, initialize_input.sequence_number, initialize_input.sub_sequence_number)
    def process_records(self, process_records_input):
        self.seen += len(process_records_input.records)
        note("process_records", self.shard_id, self.seen)
        for record in process_records_input.records:
            obey(record, process_records_input.checkpointer, self.shard_id)
    def shutdown(self, shutdown_input):
        note("shutdown", self.shard_id, shutdown_input.reason)
        checkpoint(shutdown_input.checkpointer)
    def shutdown_requested(self, shutdown_requested_input):
        note("shutdown_requested", self.shard_id)
        checkpoint(shutdown_requested_input.checkpointer)
"""
    + TAIL
)

METHODS_OF_VERSION_3 = """
    def __init__(self):
        self.seen = 0
    def initialize(self, initialize_input):
        self.shard_id = initialize_input.shard_id
        note("initialize", self.shard_id, initialize_input.sequence_number, initialize_input.sub_sequence_number)
    def process_records(self, process_records_input):
        self.seen += len(process_records_input.records)
        note("process_records", self.shard_id, self.seen)
        for record in process_records_input.records:
            obey(record, process_records_input.checkpointer, self.shard_id)
    def lease_lost(self, lease_lost_input):
        note("lease_lost", self.shard_id)
    def shard_ended(self, shard_ended_input):
        note("shard_ended", self.shard_id)
        checkpoint(shard_ended_input.checkpointer)
    def shutdown_requested(self, shutdown_requested_input):
        note("shutdown_requested", self.shard_id)
        checkpoint(shutdown_requested_input.checkpointer)
"""

VERSION_3 = (
    HEAD
    + """
from amazon_kclpy.v3 import processor

class RecordProcessor(processor.RecordProcessorBase):
"""
    + METHODS_OF_VERSION_3
    + TAIL
)

README = HEAD + "\nclass RecordProcessor(kcl.RecordProcessorBase):\n" + METHODS_OF_VERSION_3 + TAIL
"""As the README of amazon_kclpy shows it: the base class of version 1 with the methods of version 3."""

STDOUT_MOVED = VERSION_3.replace("NOTES =", "sys.stdout = sys.stderr\nNOTES =")
"""Keeps print() out of the protocol, as careful programs do: sys.stdout is moved after the import of kcl."""

PROGRAMS = {
    "v1": VERSION_1,
    "v2": VERSION_2,
    "v3": VERSION_3,
    "README": README,
    "stdout moved": STDOUT_MOVED,
}


def after_the_edit(program: str) -> str:
    """The program with the edit that makes it independent of amazon_kclpy."""
    return program.replace("from amazon_kclpy", "from pykcl.compat.kclpy")
