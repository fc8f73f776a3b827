"""Runs `python -m paygw_batch`, which does the same as the console script."""

from paygw_batch.cli.start import main

if __name__ == "__main__":
    main()
