"""`python -m pykcl.cli.process_child NUMBER WORKER_ID SOCKET VERB ARGUMENT…`: what `--processes` starts."""

from __future__ import annotations

import os
import signal
import socket
import sys

from pykcl.cli.process_member import Member


def main() -> None:
    """Run the verb as a member of its parent's processes."""
    number, worker_id, file = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    del sys.argv[1:4]
    # A program started by the application must not keep the parent waiting for the end of this one's file.
    os.set_inheritable(file, False)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # Ctrl-C before there is a worker ends it at once, as SIGTERM does, and without K tracebacks.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    member = Member(number, worker_id, socket.socket(fileno=file))
    member.start()

    from pykcl.cli.main import main as pykcl

    pykcl(args=sys.argv[1:], prog_name="pykcl", obj=member)


if __name__ == "__main__":
    main()
