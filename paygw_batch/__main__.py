"""`python -m paygw_batch`: the same as the console script."""

from paygw_batch.cli.start import main

if __name__ == "__main__":
    main()
