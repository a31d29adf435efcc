"""A scripted Java KCL worker, 2.7.2 or 3.5.1, for fleets in which pykcl is not alone.

It sends the requests real ones were recorded sending (legacy `Expected` and `AttributeUpdates`), at Java's times and by
Java's rules; what the rules are is said where they are. It knows the model, the runtime and the stream port, never
pykcl's worker or planning: a mistake they share would show in no test. Only the election of the leader is common to
both, for Java's own class was asked about it.
"""

from tests.java_peer.options import JavaAction, JavaEvent, JavaOptions
from tests.java_peer.peer import JavaPeer

__all__ = ["JavaAction", "JavaEvent", "JavaOptions", "JavaPeer"]
