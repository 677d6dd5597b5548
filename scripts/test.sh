#!/usr/bin/env bash
# Runs the tests of the workspace, several at a time, and closes with how many passed, failed and were skipped.
# Takes filters and options: scripts/test.sh --help.
set -euo pipefail
cd "$(dirname "$0")/.."

# Always the whole workspace: building one crate by itself would build its dependencies a second time.
if ! cargo build --quiet --workspace --bin test-runner; then
    echo '0 passed, 1 failed'
    exit 1
fi
exec "${CARGO_TARGET_DIR:-target}/debug/test-runner" "$@"
