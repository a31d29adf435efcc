"""What a program can see of amazon_kclpy's Python API: modules, classes, members, signatures, and the values of messages,
records and errors. Run as a file with a Python that has the real package, it writes surface_golden.json anew.
"""

import importlib
import inspect
import json
import os
import pickle
import time
from pathlib import Path

GOLDEN = Path(__file__).parent / "surface_golden.json"
MODULES = ("kcl", "messages", "dispatch", "checkpoint_error", "v2.processor", "v3.processor")
RECORD = {
    "action": "record",
    "data": "/wA=",
    "partitionKey": "käse",
    "sequenceNumber": "49590338271490256608559692538361571095921575989136588898",
    "subSequenceNumber": 2,
    "approximateArrivalTimestamp": 1700000000123,
}
INPUTS = {
    "initialize": {
        "action": "initialize",
        "shardId": "s",
        "sequenceNumber": "LATEST",
        "subSequenceNumber": 0,
    },
    "processRecords": {"action": "processRecords", "records": [RECORD], "millisBehindLatest": 7},
    "checkpoint": {"action": "checkpoint", "sequenceNumber": "5", "subSequenceNumber": 1, "error": "X"},
    "leaseLost": {"action": "leaseLost"},
    "shardEnded": {"action": "shardEnded"},
    "shutdownRequested": {"action": "shutdownRequested"},
    "record": RECORD,
}


def surface(package):
    modules = {name: importlib.import_module(f"{package}.{name}") for name in MODULES}
    return {
        "modules": {name: _classes(package, module) for name, module in modules.items()},
        "values": _values(modules),
        "record": of_record(lambda: modules["messages"].Record(RECORD)),
        "errors": _errors(modules),
    }


def _classes(package, module):
    found = {
        name: _class(value)
        for name, value in vars(module).items()
        if isinstance(value, type) and (not name.startswith("_") or name == "_IOHandler")
        if value.__module__.startswith(package)
    }
    return {name: found[name] for name in sorted(found)}


def _class(kind):
    members = {}
    for name in sorted(dir(kind)):
        if (name.startswith("_") and name not in ("__init__", "__getitem__")) or name in (
            "args",
            "add_note",
            "with_traceback",
        ):
            continue
        value = inspect.getattr_static(kind, name)
        if isinstance(value, property):
            members[name] = "property"
        elif callable(value) or isinstance(value, staticmethod):
            members[name] = _parameters(getattr(kind, name))
        else:
            members[name] = repr(value)
    if kind.__init__ in (object.__init__, Exception.__init__) or members.get("__init__") == "self":
        del members["__init__"]
    return {
        "bases": [base.__name__ for base in kind.__mro__[1:-1] if not base.__name__.startswith("_")],
        **members,
    }


def _parameters(function):
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except ValueError:
        return "?"
    is_file = [p.name.endswith("_file") for p in parameters]
    return ", ".join(
        p.name + ("" if p.default is p.empty else "=<a file>" if file else f"={p.default!r}")
        for p, file in zip(parameters, is_file, strict=True)
    )


def of_record(make):
    os.environ["TZ"] = "Asia/Kathmandu"  # quarter of an hour off: neither UTC nor the machine's own by chance
    time.tzset()
    try:
        record = make()
        arrived = record.approximate_arrival_timestamp
    finally:
        del os.environ["TZ"]
        time.tzset()
    fields = (
        "action",
        "data",
        "partitionKey",
        "sequenceNumber",
        "subSequenceNumber",
        "approximateArrivalTimestamp",
    )
    names = (
        "data",
        "binary_data",
        "partition_key",
        "sequence_number",
        "sub_sequence_number",
        "timestamp_millis",
    )
    return {
        **{name: repr(getattr(record, name)) for name in names},
        "approximate_arrival_timestamp": repr(arrived),
        "[…]": {field: repr(record[field]) for field in fields},
        "get": {field: repr(record.get(field)) for field in fields},
        "a field it lacks": [_raised(lambda: record["nonsense"]), _raised(lambda: record.get("nonsense"))],
        "get with a default": _raised(lambda: record.get("nonsense", 1)),
        "in pickle": repr(pickle.loads(pickle.dumps(record)).data),
        "takes attributes": _takes_attributes(record),
    }


def _takes_attributes(record):
    record.own = 1
    return record.own


def _raised(call):
    try:
        return type(call()).__name__
    except Exception as error:  # noqa: BLE001 - its type is what is looked at
        return type(error).__name__


def _values(modules):
    decode, messages = modules["dispatch"].message_decode, modules["messages"]
    found = {}
    for action, message in INPUTS.items():
        made = json.loads(json.dumps(message), object_hook=decode)
        public = [name for name in dir(made) if not name.startswith("_")]
        values = {name: getattr(made, name) for name in public if not callable(getattr(made, name))}
        found[action] = {
            "class": type(made).__name__,
            **{
                name: repr(v)
                for name, v in values.items()
                if name not in ("records", "approximate_arrival_timestamp")
            },
            "missing": {
                key: _raised(
                    lambda key=key, message=message: decode({k: v for k, v in message.items() if k != key})
                )
                for key in message
            },
        }
    zombie, end = messages.ShutdownInput.zombie(), messages.ShutdownInput.terminate("its own")
    found["shutdown inputs"] = [
        zombie.reason,
        zombie.action,
        type(zombie.checkpointer).__name__,
        end.reason,
        end.checkpointer,
    ]
    found["unknown"] = [_raised(lambda: decode({"action": "dance"}))]
    return found


def _errors(modules):
    kcl, messages = modules["kcl"], modules["messages"]
    error = kcl.CheckpointError("ThrottlingException")
    try:
        messages.LeaseLostCheckpointer().checkpoint("5", 1)
    except kcl.CheckpointError as refused:
        lost = refused.value
    bases = (kcl, modules["v2.processor"], modules["v3.processor"])
    return {
        "str": str(error),
        "repr": repr(error),
        "value": error.value,
        "args": list(error.args),
        "pickle": pickle.loads(pickle.dumps(error)).value,
        "one class": kcl.CheckpointError is modules["checkpoint_error"].CheckpointError,
        "lease lost": lost,
        "not written": [
            [name, _raised(lambda b=base, n=name: getattr(b.RecordProcessorBase(), n)(*_nones(b.RecordProcessorBase, n)))]
            for base in bases
            for name in ("initialize", "process_records", "shutdown", "lease_lost", "shard_ended", "shutdown_requested")
            if hasattr(base.RecordProcessorBase, name)
        ],
        "versions": [base.RecordProcessorBase.version for base in bases],
    }  # fmt: skip


def _nones(kind, name):
    return [None] * (len(inspect.signature(getattr(kind, name)).parameters) - 1)


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(surface("amazon_kclpy"), indent=1, ensure_ascii=False) + "\n")
