"""`python -m paygw_batch`, and the console script."""


def main() -> None:
    """Start the program."""
    from paygw_batch.cli.root import cli  # noqa: PLC0415 (kept out of import time)

    cli()


if __name__ == "__main__":
    main()
