"""A function: it is called with each record."""

from pykcl import App, Record

app = App("orders-app", initial_position="TRIM_HORIZON")


@app.stream("orders")
def on_order(record: Record) -> None:
    order = record.json()
    print(f"{order['customer']} {order['number']}\n", end="", flush=True)


if __name__ == "__main__":
    app.run()
