"""The programs of examples/: one application, written in each form, through a kill and a split."""

import json
import os
import sys
from collections import defaultdict
from itertools import accumulate
from pathlib import Path

import boto3
import pytest

from pykcl.local import local_environment
from pykcl.local.server import LocalAws
from pykcl.local.stream import Entry
from tests.program import Program

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))
CUSTOMERS, MOST_LINES = 20, 15


@pytest.fixture
def aws():
    with LocalAws() as running:
        running.kinesis.create_stream("orders", 2)
        yield running


def put(kinesis, numbers):
    orders = [{"customer": f"c{each}", "number": number} for number in numbers for each in range(CUSTOMERS)]
    kinesis.put_records("orders", [Entry(json.dumps(each).encode(), each["customer"]) for each in orders])


def printed(folder):
    """Return the numbers that the programs have printed, by customer; a killed one may leave half a line."""
    found = defaultdict(list)
    for line in (folder / "out").read_text().splitlines(keepends=True):
        if line.endswith("\n") and line.count(" ") == 1:
            customer, number = line.split()
            found[customer].append(int(number))
    return found


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_short(path):
    assert sum(bool(line.strip()) for line in path.read_text().splitlines()) <= MOST_LINES


class Orders:
    """The orders of a stream, as many of each customer, in ascending order."""

    def __init__(self, kinesis):
        self._kinesis, self.count = kinesis, 0

    def put(self, count):
        numbers = range(self.count, self.count + count)
        put(self._kinesis, numbers)
        self.count = numbers.stop

    def are_printed(self, folder):
        found = printed(folder)
        return all(self.count - 1 in found[f"c{each}"] for each in range(CUSTOMERS))


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_loses_nothing_and_keeps_the_order_through_a_kill_and_a_split(aws, tmp_path, path):
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "PYKCL_"))
    }
    environment |= local_environment(aws.url)
    environment["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, sys.path))
    orders, programs = Orders(aws.kinesis), []
    dynamodb = boto3.client(
        "dynamodb",
        endpoint_url=aws.url,
        region_name="us-east-1",
        aws_access_key_id="a",
        aws_secret_access_key="s",
    )

    def each_has_a_lease():
        if "orders-app" not in dynamodb.list_tables()["TableNames"]:
            return False
        rows = dynamodb.scan(TableName="orders-app")["Items"]
        return len({row["leaseOwner"]["S"] for row in rows if "leaseOwner" in row}) == len(programs)

    try:
        programs += [Program(tmp_path, path, environment=environment) for _ in range(2)]
        killed, left = programs
        left.wait(each_has_a_lease, "a lease for each")
        orders.put(50)
        left.wait(lambda: printed(tmp_path), "an order")
        aws.kinesis.split("orders", "shardId-000000000000")
        orders.put(30)
        killed.end()
        orders.put(20)
        left.wait(lambda: orders.are_printed(tmp_path), "all orders", 120)
        assert left.stop() == 0
    finally:
        for program in programs:
            program.end()
    repeats = 0
    for numbers in printed(tmp_path).values():
        assert set(numbers) == set(range(orders.count)), "lost"
        highest = [-1, *accumulate(numbers, max)]
        assert all(number <= before + 1 for number, before in zip(numbers, highest, strict=False)), numbers
        repeats += len(numbers) - orders.count
    print(f"{path.name}: {CUSTOMERS * orders.count} orders, lost 0, out of order 0, {repeats} repeats")
