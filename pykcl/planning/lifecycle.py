"""The life of one lease worker, as one table: (state, signal) -> state.

Rule: everything that decides what a lease worker does next is in this file. A transition that is not in the table
cannot happen; a state has one activity, and the activity ends with one signal.
"""

from __future__ import annotations

from enum import Enum


class State(Enum):
    """The state of a lease worker. The last five are final."""

    ACQUIRING = "acquiring"  # sends the conditional write that takes the lease
    SETTLING = "settling"  # took it from a live owner: waits until that one must have noticed
    WAITING_FOR_PARENTS = "waiting for parents"
    STARTING = "starting"  # makes the processor and calls initialize
    READING = "reading"  # fetches, delivers, checkpoints
    PAUSED = "paused"  # checkpoints only: the application has paused the shard
    ENDING = "ending"  # shard_ended, children, SHARD_END
    SHUTTING_DOWN = "shutting down"  # shutdown_requested, last checkpoint
    HANDING_BACK = "handing back"  # cannot go on here: shutdown_requested, last checkpoint, owner removed
    RELEASING = "releasing"  # removes the owner
    LOSING = "losing"  # lease_lost

    ENDED = "ended"
    RELEASED = "released"
    HANDED_BACK = "handed back"
    LOST = "lost"
    NOT_TAKEN = "not taken"


class Signal(Enum):
    """The end of an activity."""

    TAKEN = "taken"
    TAKEN_FROM_LIVE_OWNER = "taken from a live owner"
    TAKEN_ENDED = "taken, and has ended"
    REFUSED = "refused"
    SETTLED = "settled"
    PARENTS_ENDED = "parents ended"
    STARTED = "started"
    DRAINED = "drained"
    PAUSE = "pause"
    RESUMED = "resumed"
    DONE = "done"
    STOP = "stop"
    LEASE_LOST = "lease lost"
    GIVE_UP = "give up"
    RESTART = "restart"


FINAL = frozenset({State.ENDED, State.RELEASED, State.HANDED_BACK, State.LOST, State.NOT_TAKEN})

TABLE: dict[tuple[State, Signal], State] = {
    (State.ACQUIRING, Signal.TAKEN): State.WAITING_FOR_PARENTS,
    (State.ACQUIRING, Signal.TAKEN_FROM_LIVE_OWNER): State.SETTLING,
    (State.ACQUIRING, Signal.TAKEN_ENDED): State.RELEASING,
    (State.ACQUIRING, Signal.REFUSED): State.NOT_TAKEN,
    (State.ACQUIRING, Signal.STOP): State.NOT_TAKEN,
    (State.SETTLING, Signal.SETTLED): State.WAITING_FOR_PARENTS,
    (State.SETTLING, Signal.STOP): State.RELEASING,
    (State.SETTLING, Signal.LEASE_LOST): State.LOST,
    (State.WAITING_FOR_PARENTS, Signal.PARENTS_ENDED): State.STARTING,
    (State.WAITING_FOR_PARENTS, Signal.STOP): State.RELEASING,
    (State.WAITING_FOR_PARENTS, Signal.GIVE_UP): State.HANDING_BACK,
    (State.WAITING_FOR_PARENTS, Signal.LEASE_LOST): State.LOST,
    (State.STARTING, Signal.STARTED): State.READING,
    (State.STARTING, Signal.STOP): State.RELEASING,
    (State.STARTING, Signal.GIVE_UP): State.HANDING_BACK,
    (State.STARTING, Signal.LEASE_LOST): State.LOSING,
    (State.READING, Signal.DRAINED): State.ENDING,
    (State.READING, Signal.PAUSE): State.PAUSED,
    (State.READING, Signal.RESTART): State.STARTING,
    (State.READING, Signal.STOP): State.SHUTTING_DOWN,
    (State.READING, Signal.GIVE_UP): State.HANDING_BACK,
    (State.READING, Signal.LEASE_LOST): State.LOSING,
    (State.PAUSED, Signal.RESUMED): State.READING,
    (State.PAUSED, Signal.STOP): State.SHUTTING_DOWN,
    (State.PAUSED, Signal.LEASE_LOST): State.LOSING,
    (State.ENDING, Signal.DONE): State.ENDED,
    (State.ENDING, Signal.RESTART): State.STARTING,
    (State.ENDING, Signal.STOP): State.SHUTTING_DOWN,
    (State.ENDING, Signal.GIVE_UP): State.HANDING_BACK,
    (State.ENDING, Signal.LEASE_LOST): State.LOSING,
    (State.SHUTTING_DOWN, Signal.DONE): State.RELEASING,
    (State.SHUTTING_DOWN, Signal.LEASE_LOST): State.LOSING,
    (State.HANDING_BACK, Signal.DONE): State.HANDED_BACK,
    (State.HANDING_BACK, Signal.LEASE_LOST): State.LOSING,
    (State.RELEASING, Signal.DONE): State.RELEASED,
    (State.RELEASING, Signal.LEASE_LOST): State.LOST,
    (State.LOSING, Signal.DONE): State.LOST,
}


def next_state(state: State, signal: Signal) -> State:
    """The state that follows. Raises ValueError for a transition the table does not have."""
    try:
        return TABLE[state, signal]
    except KeyError:
        raise ValueError(f"a lease worker that is {state.value} cannot meet {signal.value!r}") from None
