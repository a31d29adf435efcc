"""What `pykcl run` is told to run."""

from pykcl import RecordProcessor


class Orders(RecordProcessor):
    def process_records(self, batch):
        pass


class Misspelt(RecordProcessor):
    def proces_records(self, batch):
        pass


class NeedsArguments(Orders):
    def __init__(self, db):
        self.db = db


an_instance = Orders()


def forgets_to_return():
    Orders()


def returns_the_class():
    return Orders


async def async_handler(event, context):
    pass


def handler_of_one(event):
    pass
