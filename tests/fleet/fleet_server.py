"""The local AWS of a run, a process of its own: `python fleet_server.py STREAM SHARDS REQUEST_LOG`.

Its clock is the run's, so that its log can be compared with what the workers wrote down. Prints its URL.
"""

import signal
import sys
import threading
from pathlib import Path

from fleet_clock import die_with_the_harness, now_millis

from pykcl.local.server import LocalAws


def main() -> None:
    stream, shards, log = sys.argv[1:]
    die_with_the_harness()
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the harness; it ends us in its order
    with LocalAws(request_log=Path(log), now_millis=now_millis) as aws:
        aws.kinesis.create_stream(stream, int(shards))
        print(aws.url, flush=True)
        while not stop.wait(0.2):
            pass


if __name__ == "__main__":
    main()
