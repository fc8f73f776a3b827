"""Writes the pins again, or shows what they are digests of.

python -m tests.pins                 # compares, and says what differs
python -m tests.pins --write         # writes pins.json again: after a change of an output that is meant
python -m tests.pins --save DIR      # writes every output whole into DIR, to be held against another commit's
python -m tests.pins --long          # compares the sheet of 100,000 rows too (with --write: writes it too)
"""

import argparse
import sys
from pathlib import Path

from tests.pins import compare
from tests.pins.outputs import GROUPS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.pins", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--save", type=Path, metavar="DIR")
    parser.add_argument("--long", action="store_true")
    parser.add_argument("groups", nargs="*", help=f"of {', '.join(GROUPS)}; default: all")
    options = parser.parse_args()
    outputs = dict(compare.collect_outputs(options.groups or list(GROUPS), long=options.long))
    if options.save is not None:
        compare.save_outputs(outputs, options.save)
    if options.write:
        compare.write_pins(outputs, is_all=not options.groups)
        return 0
    wrong = compare.find_differences(outputs, options.groups or list(GROUPS), long=options.long)
    print("\n".join(wrong) if wrong else f"{len(outputs)} outputs are as pinned.")  # noqa: T201 (a command)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
