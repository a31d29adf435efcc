"""Iteration: asking for the next record settles the one before."""

from pykcl import Consumer


def main() -> None:
    with Consumer("orders-app", stream="orders", initial_position="TRIM_HORIZON") as consumer:
        for record in consumer:
            order = record.json()
            print(f"{order['customer']} {order['number']}\n", end="", flush=True)


if __name__ == "__main__":
    main()
