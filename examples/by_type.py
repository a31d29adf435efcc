"""A typed function: the annotation of its parameter says how each record is decoded."""

from typing import TypedDict

from pykcl import App


class Order(TypedDict):
    customer: str
    number: int


app = App("orders-app", initial_position="TRIM_HORIZON")


@app.stream("orders")
def on_order(order: Order) -> None:
    print(f"{order['customer']} {order['number']}\n", end="", flush=True)


if __name__ == "__main__":
    app.run()
