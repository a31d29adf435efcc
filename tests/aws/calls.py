"""One of each call that a worker makes; and a wait."""

from pykcl.interfaces import Applied
from pykcl.model import lease_writes
from pykcl.model.checkpoint import AT_TRIM_HORIZON, ReadFrom
from pykcl.model.lease import Lease, PykclMetadata
from pykcl.runtime import SystemRuntime

SHARD = "shardId-000000000000"


def call_all(table, stream):
    """Each must work, over whatever transport it takes."""
    runtime = SystemRuntime()
    assert table.prepare(create=True) in (True, False)
    stream.describe()
    assert stream.list_shards().complete
    stream.fetch(SHARD, stream.open(SHARD, ReadFrom("TRIM_HORIZON")), 10)
    table.scan()
    if table.read(SHARD) is None:
        created = table.write(
            lease_writes.create(Lease(SHARD, AT_TRIM_HORIZON)), until=runtime.monotonic() + 60
        )
        assert isinstance(created, Applied)
    seen = table.read(SHARD)
    write = lease_writes.renew(seen) if seen.owner else lease_writes.take(seen, "w", PykclMetadata())
    assert isinstance(table.write(write, until=runtime.monotonic() + 60), Applied)


def waiting_for(done):
    """Wait until it is so, two minutes at most."""
    runtime = SystemRuntime()
    pause, until = runtime.event(), runtime.monotonic() + 120
    while not done():
        assert runtime.monotonic() < until
        pause.wait(0.02)
