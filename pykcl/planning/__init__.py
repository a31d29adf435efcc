"""Pure decisions about the fleet and one shard: same input, same output, with a reason in every answer.

No I/O, no clock and no global randomness: time and chance are arguments. May import `model` and `errors` only.
"""
