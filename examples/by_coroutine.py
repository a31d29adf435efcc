"""An async function: up to 32 orders of a shard at a time, those of one customer in order."""

import asyncio

from pykcl import App, Record

app = App("orders-app", initial_position="TRIM_HORIZON")


@app.stream("orders", concurrency=32)
async def on_order(record: Record) -> None:
    order = record.json()
    await asyncio.sleep(0.005)
    print(f"{order['customer']} {order['number']}\n", end="", flush=True)


if __name__ == "__main__":
    app.run()
