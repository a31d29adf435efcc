"""Pieces of programs of amazon_kclpy: a sound one, to which a test puts one thing that migrate should tell of."""

from __future__ import annotations

IMPORTS = "from amazon_kclpy import kcl\nfrom amazon_kclpy.v3 import processor\n"
SOUND = (
    IMPORTS
    + """{globals}
class Orders(processor.RecordProcessorBase):
    {attributes}
    def initialize(self, initialize_input):
        {initialize}
    def process_records(self, process_records_input):
        for record in process_records_input.records:
            {process}
    def lease_lost(self, lease_lost_input):
        pass
    def shard_ended(self, shard_ended_input):
        shard_ended_input.checkpointer.checkpoint()
    def shutdown_requested(self, shutdown_requested_input):
        shutdown_requested_input.checkpointer.checkpoint()
{main}
"""
)
MAIN = 'if __name__ == "__main__":\n    kcl.KCLProcess(Orders()).run()'


def program(main: str = MAIN, attributes: str = "x = 1", **parts: str) -> str:
    """A sound program with something in one of its places. What is more than a line is indented as it stands."""
    places = {"globals": "", "initialize": "pass", "process": "pass"} | parts
    return SOUND.format(main=main, attributes=attributes, **places)
