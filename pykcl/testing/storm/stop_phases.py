"""F18: stops in phases that last no longer than one request, at the very request."""

from __future__ import annotations

from pykcl.testing.memory.dynamodb import Params
from pykcl.testing.storm.dynamo_faults import kind_of_write
from pykcl.testing.storm.fleet import StormFleet
from pykcl.testing.storm.hosts import WorkerHost
from pykcl.testing.storm.world import TABLE, World


class StopPhases:
    """Told of every request to DynamoDB by the thread that sends it, before it is sent."""

    def __init__(self, world: World, fleet: StormFleet) -> None:
        self._faults, self._fleet = world.faults, fleet

    def request_sent(self, operation: str, params: Params, name: str) -> None:
        """name: of the host that sends it."""
        if params.get("TableName") != TABLE or not name.startswith("w"):
            return
        if operation == "CreateTable":
            self._stop("F18.creating", name)
        elif operation == "UpdateItem":
            kind = kind_of_write(operation, params)
            if kind == "checkpoint":
                self._stop("F18.checkpoint", name)
            elif kind == "release":
                self._stop("F18.releasing", name)

    def _stop(self, fault: str, name: str) -> None:
        if not self._faults.is_due(fault):
            return
        host = self._fleet.alive.get(name)
        if isinstance(host, WorkerHost):
            self._fleet.ask_to_stop(host)
            self._faults.note(fault, name)
            return
        leaving = self._fleet.leaving.get(name)
        if fault == "F18.releasing" and isinstance(leaving, WorkerHost) and not leaving.is_over:
            leaving.stop_again()
            self._faults.note(fault, name)
