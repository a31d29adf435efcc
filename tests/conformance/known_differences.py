"""Where an emulator is known to differ from AWS. The one list of them: the suites expect each to go on differing.

There is none for the parts pykcl brings itself, the in-memory ones and the local Kinesis; a test checks that.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "about" / "verification.md"
HEAD = "| over | differs from AWS | why it stands | cases |"

BACKENDS = {
    "memory": "in-memory",
    "sqlite": "SQLite file",
    "local_aws": "local AWS (moto)",
    "local_aws_lean": "same, direct",
    "dynalite": "dynalite",
    "model": "in-memory",
    "wire": "local Kinesis",
    "wire_boto3": "same, over boto3",
    "wire_json": "same, direct JSON",
    "wire_cbor": "same, direct CBOR",
    "kinesis_local": "kinesis-local",
}
"""Every backend by the name its cases carry, and what people call it. dynalite and kinesis-local come from npm."""

WIRES = ("wire", "wire_boto3", "wire_json", "wire_cbor")
"""Our local Kinesis, read as by default and in each of the ways that pages may come."""
LEAN = "local_aws_lean"
"""The lease table over the direct transport, against the local AWS."""
AWS = "aws"
"""The account of --aws-prefix, in place of all others."""
SUITES = {
    "lease tables": ("memory", "sqlite", "local_aws", LEAN, "dynalite"),
    "streams": ("model", *WIRES, "kinesis_local"),
}
OURS = ("memory", "sqlite", "model", *WIRES)
FROM_NPM = ("dynalite", "kinesis_local")
SLOW = (LEAN, "wire_boto3", "wire_json")
"""The same emulators as others, over another transport."""


@dataclass(frozen=True)
class Difference:
    """One of them.

    backend: a key of BACKENDS. cases: the tests that show it, each its name without "test_", with [parameters] where
    it has any. differs: what the emulator does instead of what AWS does. because: why we can live with it.
    seen: a regular expression found in the failure, so that only this difference passes for it.
    """

    backend: str
    cases: tuple[str, ...]
    differs: str
    because: str
    seen: str


def cases(name: str, *parameters: str) -> tuple[str, ...]:
    return tuple(f"{name}[{one}]" for one in parameters) if parameters else (name,)


NOT_REFUSED = "DID NOT RAISE"
KNOWN = [
    # -- moto, behind the lock of the local AWS
    Difference(
        "local_aws",
        (
            *cases(
                "an_invalid_condition_is_refused",
                "undefined value",
                "wrong operator",
                "nothing after AND",
                "parenthesis",
                "function",
                "operands",
                "name",
            ),
            *cases("invalid_requests_are_refused_and_change_nothing", "undefined name"),
            *cases("a_scan_that_makes_no_sense_is_refused", "filter"),
        ),
        "answers an expression that is none with HTTP 500, not with ValidationException",
        "moto's parser raises; pykcl's expressions are built in one place and never wrong",
        r"answered 500|== 'ValidationException'",
    ),
    Difference(
        "local_aws",
        cases("an_invalid_condition_is_refused", "one operand twice"),
        "compares an attribute with itself, which AWS refuses",
        "moto does not check it; pykcl compares attributes with values only",
        "== 'ValidationException'",
    ),
    Difference(
        "local_aws",
        cases("conditions_are_evaluated", "size(nothing) < N 2"),
        "answers size() of a missing attribute with HTTP 500, not with false",
        "moto measures None; pykcl asks for no sizes",
        "InternalFailure",
    ),
    Difference(
        "local_aws",
        cases("invalid_requests_are_refused_and_change_nothing", "legacy and modern"),
        "accepts old and new parameters in one request",
        "moto looks at the new ones only; no worker mixes them",
        NOT_REFUSED,
    ),
    Difference(
        "local_aws",
        (
            *cases("invalid_requests_are_refused_and_change_nothing", "empty set", "not a number"),
            *cases("values_that_are_none_are_refused", "set with a member twice", "39 digits", "too large"),
        ),
        "stores values that AWS refuses: empty sets in an update, sets with a member twice, numbers out of range",
        "moto keeps most values unchecked; pykcl makes none of these",
        NOT_REFUSED,
    ),
    Difference(
        "local_aws",
        cases(
            "every_type_is_stored_and_comes_back_the_same_by_every_way",
            "number with zeros",
            "number with exponent",
            "negative zero",
            "numbers",
            "nested",
        ),
        "gives numbers back as they were written (1E2), where AWS gives them in one form (100)",
        "moto stores their text; pykcl and Java write plain integers, and compare numbers as numbers",
        r"007.50|1E2|-0|1.0|\.\.\.L': True",
    ),
    Difference(
        "local_aws",
        cases("a_row_over_400_kb_is_refused_and_one_below_is_kept"),
        "counts binary values as base64 when it measures a row, so its limit is 300 KB of them",
        "moto measures the request; a lease row has 256 KB of pending state at most",
        "Item size has exceeded",
    ),
    Difference(
        "local_aws",
        cases("a_page_that_stops_at_its_limit_names_its_last_key_even_at_the_end"),
        "names no last key where a page ends at its limit and the table with it",
        "moto looks ahead; a scan that goes on until no key is named works with both",
        r"\[7\] == \[7, 0\]",
    ),
    Difference(
        "local_aws",
        cases("a_scan_says_what_it_cost_where_asked"),
        "says that every scan costs one read unit",
        "moto does not measure; pykcl's pace is tested in memory",
        r"\(1.0, 1.0\) == \(3.0, 6.0\)",
    ),
    Difference(
        "local_aws",
        cases("a_scan_that_makes_no_sense_is_refused", "start key"),
        "answers a start key of another table with HTTP 500",
        "moto looks the key up unchecked; pykcl hands back the key it was given",
        "answered 500",
    ),
    Difference(
        "local_aws",
        (
            *cases("keys_that_do_not_fit_the_schema_are_refused", "get_item-type", "delete_item-type"),
            *cases("keys_that_do_not_fit_the_schema_are_refused", "delete_item-empty", "update_item-empty"),
            *cases(
                "keys_that_do_not_fit_the_schema_are_refused", "get_item-too long", "delete_item-too long"
            ),
        ),
        "accepts keys of the wrong type, empty ones and too long ones, where AWS refuses them",
        "moto checks keys of some operations only; lease keys are shard ids",
        "DID NOT RAISE|answered 500",
    ),
    Difference(
        "local_aws",
        cases("an_indexed_owner_must_be_text_as_kcl_3_makes_it", "number"),
        "answers an indexed owner of type number with HTTP 500",
        "moto compares it with text; no worker writes one",
        "answered 500|DID NOT RAISE",
    ),
    # -- dynalite
    Difference(
        "dynalite",
        (
            *cases("a_refusal_shows_the_row_where_it_is_asked_to", "put", "delete", "update"),
            *cases("a_java_renewal_that_failed_shows_the_row_where_it_is_asked_to"),
            *cases("a_refusal_shows_the_row_so_that_no_read_is_needed"),
        ),
        "ignores ReturnValuesOnConditionCheckFailure: a refusal never shows the row",
        "dynalite is older than it; so every settled write of the suite went through a consistent read",
        r"None ==|'get_item'\] ==",
    ),
    Difference(
        "dynalite",
        cases(
            "the_old_conditions_are_evaluated",
            "update_item-exists with another value",
            "put_item-exists with another value",
            "delete_item-exists with another value",
        ),
        "forgets the Value beside Exists: true in an old condition",
        "dynalite looks at Exists only; Java sends both for the row's own key, which always fits",
        NOT_REFUSED,
    ),
    Difference(
        "dynalite",
        cases(
            "put_and_delete_refuse_to_return_anything_else",
            "delete-ALL_NEW",
            "delete-UPDATED_OLD",
            "delete-UPDATED_NEW",
        ),
        "accepts every ReturnValues of a DeleteItem",
        "dynalite does not check it there; pykcl asks a delete for nothing",
        NOT_REFUSED,
    ),
    Difference(
        "dynalite",
        cases("an_indexed_owner_must_be_text_as_kcl_3_makes_it", "empty"),
        "accepts an empty text as an indexed owner",
        "dynalite checks the type only; pykcl removes the owner instead",
        NOT_REFUSED,
    ),
    Difference(
        "dynalite",
        cases("a_scan_says_what_it_cost_where_asked"),
        "says that a consistent scan costs as much as another one",
        "dynalite halves both; pykcl goes by what scans without consistency cost",
        r"\(3, 3\) == \(3.0, 6.0\)",
    ),
    Difference(
        "dynalite",
        cases("a_scan_that_makes_no_sense_is_refused", "segment alone"),
        "takes a Segment without TotalSegments for a whole scan",
        "dynalite tests the number 0 for truth; pykcl names both, or none",
        NOT_REFUSED,
    ),
    # -- kinesis-local
    Difference(
        "kinesis_local",
        cases("a_time_that_has_not_come_is_refused_for_now", "empty"),
        "opens a shard without records at a time that has not come",
        "kinesis-local compares with the last record; a start is in the past",
        NOT_REFUSED,
    ),
    Difference(
        "kinesis_local",
        (
            *cases("a_number_of_another_shard_is_refused_as_a_position", "empty"),
            *cases("a_number_that_was_not_given_yet_is_refused_as_a_position", "empty"),
            *cases("a_position_in_a_stream_made_again_is_of_the_wrong_stream"),
        ),
        "opens a shard without records at any sequence number",
        "kinesis-local has no record to compare with; tested over our own parts",
        NOT_REFUSED,
    ),
    Difference(
        "kinesis_local",
        (
            *cases("a_number_of_another_shard_is_refused_as_a_position", "with a record"),
            *cases("a_number_that_was_not_given_yet_is_refused_as_a_position", "with a record"),
        ),
        "calls a number that is no record's ResourceNotFoundException, not InvalidArgumentException",
        "kinesis-local looks for the record itself; tested over our own parts",
        "ShardGone",
    ),
    Difference(
        "kinesis_local",
        cases("how_far_behind_grows_while_nobody_reads_or_writes"),
        "measures MillisBehindLatest up to the last record, not up to now",
        "its own idea of it; zero at the tip and more before it hold all the same",
        r"59000 <= \(\d+ - \d+\)",
    ),
    Difference(
        "kinesis_local",
        cases("what_is_no_iterator_asks_for_a_new_one", "text", "base64"),
        "answers an iterator that is none with HTTP 500, not with InvalidArgumentException",
        "its decryption fails; tested over our own parts",
        "HTTP 500",
    ),
    Difference(
        "kinesis_local",
        cases("the_ending_number_of_a_closed_shard_is_not_less_than_its_records"),
        "says 9223372036854775807 is the last number of every closed shard, less than its records'",
        "a constant in its code; pykcl asks only whether there is one",
        "9223372036854775807",
    ),
    Difference(
        "kinesis_local",
        (
            *cases("records_older_than_the_retention_are_gone_and_trim_horizon_starts_at_what_is_left"),
            *cases("a_closed_shard_leaves_the_listing_after_the_retention_and_its_children_stay"),
        ),
        "keeps records and closed shards for ever",
        "retention is not built there; tested over our own parts",
        "b'old', b'young'|shardId-0+0' != ",
    ),
]


def table() -> str:
    """The list as the table of docs/about/verification.md."""
    rows = [HEAD, "|---|---|---|---|"]
    for one in KNOWN:
        rows.append(f"| {BACKENDS[one.backend]} | {one.differs} | {one.because} | {len(one.cases)} |")
    return "\n".join(rows) + "\n"


def with_table(page: str) -> str:
    """The page with its table brought up to date."""
    before, _, rest = page.partition(HEAD)
    lines = rest.split("\n")[1:]
    after = next(number for number, line in enumerate(lines) if not line.startswith("|"))
    return before + table() + "\n".join(lines[after:])


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text("utf-8")), "utf-8")
