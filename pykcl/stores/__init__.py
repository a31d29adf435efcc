"""Lease tables outside of DynamoDB, by the requests that DynamoDB gets: evaluated here, and kept in a file.

`expressions` and `requests` evaluate a request over rows; the testing kit uses them, too. `sqlite` keeps rows in a
file. A store has the methods of boto3's client, so that `aws.lease_table` runs over it. Used by the composition roots.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pykcl.errors import ConfigError

if TYPE_CHECKING:
    from pykcl.stores.sqlite import SQLiteLeaseTable


def open_lease_store(text: str) -> SQLiteLeaseTable:
    """Return the store of an address such as sqlite:orders.db. Raises ConfigError for any other."""
    kind, colon, path = text.partition(":")
    if kind != "sqlite" or not colon or not path or path.startswith(("//", "~", "file:")):
        raise ConfigError(
            f"The lease store {text!r} is no address of one. Do: name an SQLite file, such as sqlite:orders.db, which "
            "the workers of one machine share; or leave it out, for a table in DynamoDB."
        )
    from pykcl.stores.sqlite import SQLiteLeaseTable

    return SQLiteLeaseTable(path)
