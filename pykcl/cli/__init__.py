"""`pykcl …`: one file per verb, click on the surface, exit codes 0 clean, 2 usage, 70 crash, 78 configuration.

May import everything below it; imports boto3, moto and rich only inside the verb that needs them.
"""

from __future__ import annotations

import os
import signal


def end_by_sigterm() -> None:
    """Let SIGTERM end this process also where it is the first one of a container, until a verb takes the signal.

    The kernel drops a signal for which that process has no handler: 1) the command imports its modules; 2) the platform
    stops the container; 3) the worker starts all the same, and is killed with its leases when the patience is over. To
    be called before anything is imported that takes its time.
    """
    if os.getpid() == 1 and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _end)


def _end(number: int, _: object) -> None:
    # A process that was forked from this one ends by the signal, as any other; the first one does not.
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    os._exit(128 + number)
