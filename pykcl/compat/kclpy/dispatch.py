"""Decode JSON objects of the MultiLang protocol to messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pykcl.compat.kclpy import messages


class MalformedAction(Exception):
    """A JSON object that is not a message: it has no action, or an unknown one."""


_MESSAGES: dict[str, Callable[[Mapping[str, Any]], Any]] = {
    "initialize": messages.InitializeInput,
    "processRecords": messages.ProcessRecordsInput,
    "record": messages.Record,
    "checkpoint": messages.CheckpointInput,
    "leaseLost": messages.LeaseLostInput,
    "shardEnded": messages.ShardEndedInput,
    "shutdownRequested": messages.ShutdownRequestedInput,
}
"""Messages of daemons of KCL 2.x and 3.x; only 1.x sent "shutdown", which amazon_kclpy cannot read either."""


def message_decode(json_dict: Mapping[str, Any]) -> Any:
    """Return the message, or the record in one. Raises MalformedAction, or KeyError if a field is missing."""
    # The text never quotes the object, which may hold a payload.
    if "action" not in json_dict:
        raise MalformedAction(f"A message without an action. It has: {', '.join(sorted(json_dict))}.")
    action = json_dict["action"]
    if not isinstance(action, str) or action not in _MESSAGES:
        raise MalformedAction(f"A message with an unknown action. Known: {', '.join(_MESSAGES)}.")
    return _MESSAGES[action](json_dict)
