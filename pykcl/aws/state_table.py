"""The state of KCL 3.0-3.4, which is in a table of its own: `<application>-CoordinatorState`, keyed by `key`.

Java KCL 3.1.3 `coordinator/CoordinatorConfig.java` (CoordinatorStateTableConfig) names the table after the
application, not after the lease table. Most fleets have no such table, and the permission to read it is optional.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pykcl.aws.failures import MALFORMED, aws_errors, calling, error_code, sort_failure
from pykcl.aws.table_answers import refuse_foreign
from pykcl.errors import PyKclError, TemporaryError
from pykcl.model.lease import ForeignRow, JavaState
from pykcl.model.lease_item import MIGRATION_KEY, parse_row

STATE_SUFFIX = "-CoordinatorState"
_DOING = "reading the state of KCL 3.0-3.4"


def state_table_of(application: str) -> str:
    """The name of the table."""
    return application + STATE_SUFFIX


def read_state(
    client: Any, table: str, calling: Callable[[Callable[..., Any]], Callable[..., Any]] = calling
) -> JavaState:
    """One GetItem. Raises TemporaryError for what may work a moment later; what will not is told in `unread`."""
    failure: PyKclError | None = None
    answer: Any = {}
    try:
        answer = calling(client.get_item)(
            TableName=table, Key={"key": {"S": MIGRATION_KEY}}, ConsistentRead=True
        )
        refuse_foreign(answer, _DOING)
    except aws_errors() as error:
        if error_code(error) == "ResourceNotFoundException":
            return JavaState()
        failure = sort_failure(error, doing=_DOING)
    except MALFORMED:
        return JavaState(unread="its answer cannot be read")
    if isinstance(failure, TemporaryError):
        raise failure
    if failure is not None:
        return JavaState(unread="not permitted, or no table of that kind")
    item = answer.get("Item")
    row = parse_row(item) if item else None
    return JavaState(migration=row if isinstance(row, ForeignRow) else None)
