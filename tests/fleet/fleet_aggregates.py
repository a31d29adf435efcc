"""KPL aggregates by aws-kinesis-agg: `OtherEncoder`, and the process that it starts, which is this file as a script.

A process of its own, because that library edits `sys.path` and registers its messages in protobuf's default pool.
"""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Sequence


class OtherEncoder:
    """Use as a context manager. Its process ends with the harness: its input is at an end then."""

    def __enter__(self) -> OtherEncoder:
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            start_new_session=True,
        )  # fmt: skip
        return self

    def aggregate(self, user_records: Sequence[tuple[str, bytes]]) -> tuple[str, bytes]:
        """Partition key and data of one Kinesis record that holds these (partition key, data)."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        listed = [(key, base64.b64encode(data).decode()) for key, data in user_records]
        self._process.stdin.write(json.dumps(listed) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("The process with aws-kinesis-agg ended. Is aws-kinesis-agg installed?")
        key, data = json.loads(line)
        return key, base64.b64decode(data)

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()


def main() -> None:
    import warnings

    warnings.simplefilter("ignore")
    from aws_kinesis_agg.aggregator import RecordAggregator

    for line in sys.stdin:
        maker = RecordAggregator()
        for key, data in json.loads(line):
            maker.add_user_record(key, base64.b64decode(data))
        key, _, data = maker.clear_and_get().get_contents()
        print(json.dumps([key, base64.b64encode(data).decode()]), flush=True)


if __name__ == "__main__":
    main()
