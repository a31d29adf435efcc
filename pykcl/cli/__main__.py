"""`pykcl …` and `python -m pykcl.cli …`."""

from pykcl.cli import end_by_sigterm


def main() -> None:
    """Run the command of the arguments."""
    end_by_sigterm()
    from pykcl.cli.main import main as command

    command(prog_name="pykcl")


if __name__ == "__main__":
    main()
