"""Words of names, for the sinks that write them otherwise than KCL does."""

from __future__ import annotations

import re

_BORDER = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
"""Between a small letter and a capital, and before the last capital of a run that a small letter follows."""


def snake_case(name: str) -> str:
    """`KinesisDataFetcher.getRecords` as kinesis_data_fetcher.get_records: dots stay."""
    return _BORDER.sub("_", name).lower()
