"""How a lease table is made that does not exist yet: what the user may choose about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pykcl.aws.failures import MALFORMED, aws_errors, calling, error_code, sort_failure
from pykcl.errors import AnswerRefused, SetupError, TemporaryError


@dataclass(frozen=True, slots=True)
class NewTable:
    """deletion_protection, recovery (point in time): as in `Config`. A table that exists is never changed."""

    deletion_protection: bool = False
    recovery: bool = False

    @property
    def parameters(self) -> Mapping[str, Any]:
        """What CreateTable is told besides."""
        # Left out rather than false: DynamoDB's stand-ins do not all know it.
        return {"DeletionProtectionEnabled": True} if self.deletion_protection else {}

    def finish(self, client: Any, table: str) -> None:
        """What can be asked for only once the table is ACTIVE. May be repeated.

        Raises TemporaryError (call again), SetupError when it is not permitted.
        """
        if not self.recovery:
            return
        doing = f"switching on point-in-time recovery of lease table {table!r}"
        try:
            calling(client.update_continuous_backups)(
                TableName=table, PointInTimeRecoverySpecification={"PointInTimeRecoveryEnabled": True}
            )
            return
        except aws_errors() as error:
            failure = sort_failure(error, doing=doing)
            # DynamoDB says so for some moments after a table was made.
            if error_code(error) == "ContinuousBackupsUnavailableException":
                failure = TemporaryError(f"{doing} is not possible yet. Asking again.")
        except MALFORMED as error:
            failure = AnswerRefused(f"{doing} got an answer that cannot be read ({type(error).__name__}).")
        if isinstance(failure, SetupError):
            # The table is there now: the next start would find it and never ask again.
            failure = SetupError(
                f"{failure} The table exists now, without recovery. Do: switch it on by hand, or grant "
                "dynamodb:UpdateContinuousBackups, delete the empty table and start again."
            )
        raise failure
