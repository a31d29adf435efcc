import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--seeds",
        type=int,
        default=30,
        metavar="N",
        help="how many random fleets tests/simulation tries (default 30)",
    )
