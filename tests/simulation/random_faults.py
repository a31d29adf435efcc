"""Which request and which call of a processor goes wrong, and how."""

from __future__ import annotations

import random

from pykcl.local.errors import AwsError
from pykcl.testing.memory.dynamodb import Fault, Params
from pykcl.testing.memory.faults import failing, throttled, timed_out
from pykcl.testing.simulation import Simulation

READS = {"Scan", "GetItem"}
SET_UP = {"CreateTable", "DescribeTable"}
READER_CALLS = {"GetRecords", "GetShardIterator", "ListShards", "DescribeStreamSummary"}


class RandomFaults:
    """How often each kind happens is drawn once per fleet. healed: nothing goes wrong from now on."""

    def __init__(self, rng: random.Random, simulation: Simulation) -> None:
        self.rng = rng
        self.healed = False
        self._simulation = simulation
        self._processor_fails = rng.choice([0, 0, 0.1, 0.3])
        self._slowest_call = rng.choice([0, 0, 3.0, 14.0])
        self._dynamodb_fails = rng.choice([0, 0.03, 0.15, 0.4])
        self._kinesis_fails = rng.choice([0, 0.02, 0.1])

    def of_dynamodb(self, operation: str, _params: Params) -> Fault | None:
        if operation in SET_UP or not self._happens(self._dynamodb_fails):
            return None
        kinds = [self._refused, self._refused, self._slow]
        if operation not in READS:
            kinds += [self._answer_lost, self._answer_lost]
        # A creation under way is not fenced by a counter; that it may come late is a documented limit.
        if operation not in READS and operation != "PutItem":
            kinds.append(self._postponed)
        return self.rng.choice(kinds)(operation)

    def of_kinesis(self, operation: str, _stream: str, _shard: str) -> None:
        if operation not in READER_CALLS or not self._happens(self._kinesis_fails):
            return
        codes = ["ProvisionedThroughputExceededException", "InternalFailure"]
        if operation == "GetRecords":
            codes.append("ExpiredIteratorException")
        raise AwsError(self.rng.choice(codes), "at random")

    def processor_may_fail(self, share: float = 1.0) -> None:
        if self._happens(self._processor_fails * share):
            raise ValueError

    def processor_may_dawdle(self) -> None:
        if self._slowest_call and self._happens(0.2):
            self._simulation.sleep(self.rng.uniform(0, self._slowest_call))

    def _happens(self, probability: float) -> bool:
        return not self.healed and self.rng.random() < probability

    def _refused(self, operation: str) -> Fault:
        error = self.rng.choice([throttled(operation), failing(operation), timed_out()])
        return Fault(before=error, delay=self.rng.choice([0, 2.0]))

    def _answer_lost(self, _operation: str) -> Fault:
        return Fault(after=timed_out(), delay=self.rng.choice([0, self.rng.uniform(0, 9)]))

    def _postponed(self, _operation: str) -> Fault:
        return Fault(postponed=timed_out())

    def _slow(self, _operation: str) -> Fault:
        return Fault(delay=self.rng.uniform(0, 2))
