"""Functions whose annotations are texts, as everywhere below `from __future__ import annotations`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pykcl import Context, Record, handler

if TYPE_CHECKING:
    from decimal import Decimal

seen: list[object] = []


def of_a_dict(order: dict[str, int], context: Context) -> Decimal | None:
    seen.append((order, context.attempt))
    return None


def of_a_record(record: Record) -> None:
    seen.append(record.json())


def of_a_class_below(order: Below) -> None:
    seen.append(order.id)


made_above = handler(of_a_class_below)


from dataclasses import dataclass  # noqa: E402


@dataclass
class Below:
    id: int


def of_many(orders: list[Below]) -> None:
    seen.append([order.id for order in orders])


def of_a_name_for_type_checkers(price: Decimal) -> None:
    seen.append(price)


def with_a_default_for_type_checkers(order: dict, price: Decimal | None = None) -> None:  # type: ignore[type-arg]
    seen.append((order, price))
