#!/usr/bin/env bash
# Runs every test of the workspace, documentation examples included, and closes with how many passed and failed.
# Always the whole workspace: building one crate by itself would build its dependencies a second time.
set -uo pipefail
cd "$(dirname "$0")/.."

log=$(mktemp)
trap 'rm -f "$log"' EXIT
cargo test --workspace --no-fail-fast "$@" 2>&1 | tee "$log"
status=${PIPESTATUS[0]}

# Each test binary, also one with a harness of its own, ends in "test result: ok. 12 passed; 0 failed; ...".
read -r passed failed skipped < <(awk '
    /^test result: / {
        for (i = 2; i <= NF; i++) {
            if ($i ~ /^passed/) passed += $(i - 1)
            if ($i ~ /^failed/) failed += $(i - 1)
            if ($i ~ /^ignored/) skipped += $(i - 1)
        }
    }
    END { print passed + 0, failed + 0, skipped + 0 }' "$log")
# What does not compile or dies without a result has failed too.
if [ "$status" -ne 0 ] && [ "$failed" -eq 0 ]; then failed=1; fi
if [ "$skipped" -gt 0 ]; then
    printf '%d skipped:\n' "$skipped"
    grep -E '^test .* \.\.\. ignored' "$log"
fi
printf '%d passed, %d failed\n' "$passed" "$failed"
exit "$status"
