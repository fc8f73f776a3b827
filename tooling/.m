#!/usr/bin/env bash
# Mutation testing: small changes to the modules that money depends on, each of which a test must find.
#
#   tooling/mutants core journal     rooms, one after the other; without any: all of them
#
# Works on a copy in MUTANTS (default: /tmp/paygw-mutants), with the packages of the group `mutants` beside the others.
# What survives is listed at the end; `mutmut show NAME` in that directory shows a change.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
[[ $python == /* ]] || python="$PWD/$python"
place=${MUTANTS:-/tmp/paygw-mutants}

declare -A modules=(
    [core]='"paygw_batch/core/*"'
    [journal]='"paygw_batch/journal/writer.py", "paygw_batch/journal/evidence*.py", "paygw_batch/journal/progress.py",
        "paygw_batch/journal/codec.py", "paygw_batch/journal/chain.py", "paygw_batch/journal/witness.py",
        "paygw_batch/journal/lock.py", "paygw_batch/journal/spool.py"'
    [engine]='"paygw_batch/run/engine.py", "paygw_batch/run/committer.py", "paygw_batch/run/pacing.py"'
    [people]='"paygw_batch/run/statement.py", "paygw_batch/run/resolve.py", "paygw_batch/run/approval*.py",
        "paygw_batch/run/intake.py"'
)
declare -A tests=(
    [core]='"tests/core"'
    [journal]='"tests/core", "tests/journal"'
    [engine]='"tests/run"'
    [people]='"tests/run", "tests/cli/test_day_two_resolve.py", "tests/cli/test_day_two_approval.py"'
)

for room in "${@:-core journal engine people}"; do
    for name in $room; do
        copy="$place/$name"
        mkdir -p "$copy"
        git ls-files -z --cached --others --exclude-standard | tar --null -T - --ignore-failed-read -c | tar -x -C "$copy"
        cat >>"$copy/pyproject.toml" <<CONFIGURATION

[tool.mutmut]
source_paths = ["paygw_batch"]
only_mutate = [${modules[$name]}]
pytest_add_cli_args_test_selection = [${tests[$name]}]
pytest_add_cli_args = ["-p", "no:cacheprovider"]
also_copy = ["tests", "tooling", "docs", "config", "samples", "README.md", "pyproject.toml"]
CONFIGURATION
        # A test that a slow machine fails would call a change found: no deadlines, and the same examples every time.
        cat >"$copy/tests/conftest.py" <<PROFILE
from hypothesis import settings

settings.register_profile("mutants", deadline=None, derandomize=True)
settings.load_profile("mutants")
PROFILE
        (cd "$copy" && nice -n 3 "$python" -m mutmut run --max-children 1 && "$python" -m mutmut results)
    done
done
