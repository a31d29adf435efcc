"""A processor of version 3 that does what its records say. A record is JSON: {"n": its number, "do": [verb, argument…]}.

checkpoint arguments…   with "mine" and "first" for the sequence number of this record and of the shard's first one,
                        "sub" for this record's sub-sequence number, and a last argument of {} for named arguments
raise                   once: whoever comes by again goes on
exit code               once, likewise
print text…             each of it as a line
bytes base64            as they are
"""

import base64
import json
import os
import sys

from amazon_kclpy import kcl
from amazon_kclpy.v3 import processor
from noting import checkpoint, fields_of, first_time, note


class RecordProcessor(processor.RecordProcessorBase):
    def __init__(self):
        self.shard = None
        self.first = None

    def initialize(self, initialize_input):
        self.shard = initialize_input.shard_id
        at = [initialize_input.sequence_number, initialize_input.sub_sequence_number]
        note("initialize", shard=self.shard, at=at)

    def process_records(self, process_records_input):
        for record in process_records_input.records:
            self.first = self.first or record.sequence_number
            told = json.loads(record.binary_data)
            verb, *arguments = told.get("do", ["nothing"])
            self.obey(verb, arguments, record, process_records_input.checkpointer)
            note("record", shard=self.shard, record=fields_of(record))
        note("batch", shard=self.shard)

    def obey(self, verb, arguments, record, checkpointer):
        if verb == "checkpoint":
            named = {"mine": record.sequence_number, "first": self.first, "sub": record.sub_sequence_number}
            known = [named.get(one, one) if isinstance(one, str) else one for one in arguments]
            if known and known[-1] == {}:
                names = ("sequence_number", "sub_sequence_number")
                checkpoint(self.shard, checkpointer, **dict(zip(names, known[:-1], strict=False)))
            elif known and known[0] == "as a number":
                checkpoint(self.shard, checkpointer, int(record.sequence_number), *known[1:])
            else:
                checkpoint(self.shard, checkpointer, *known)
        elif verb == "raise" and first_time("raised"):
            raise ValueError("asked to")
        elif verb == "exit" and first_time("exited"):
            sys.exit(*arguments)
        elif verb == "print":
            for text in arguments:
                print(text)
            sys.stdout.flush()
        elif verb == "bytes":
            sys.stdout.flush()
            os.write(1, base64.b64decode(arguments[0]))

    def lease_lost(self, lease_lost_input):
        note("lost", shard=self.shard)

    def shard_ended(self, shard_ended_input):
        checkpoint(self.shard, shard_ended_input.checkpointer)
        note("ended", shard=self.shard)

    def shutdown_requested(self, shutdown_requested_input):
        note("requested", shard=self.shard)


if __name__ == "__main__":
    note("package", file=kcl.__file__)
    kcl.KCLProcess(RecordProcessor()).run()
