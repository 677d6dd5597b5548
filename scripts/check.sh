#!/usr/bin/env bash
# Everything that needs no test to run. Goes on after a failure, so that one run shows all of them.
set -uo pipefail
cd "$(dirname "$0")/.."

PATH="$PATH:${XDG_CACHE_HOME:-$HOME/.cache}/fairmesh/tools/bin"
failed=()

# check NAME COMMAND...
check() {
    local name=$1
    shift
    printf '\n== %s: %s\n' "$name" "$*"
    "$@" || failed+=("$name")
}

check format cargo fmt --all --check
check clippy cargo clippy --quiet --workspace --all-targets -- -D warnings
check docs env RUSTDOCFLAGS="-D warnings" cargo doc --quiet --workspace --no-deps
# Other builds have every feature of the library.
check lean cargo check --quiet -p fairmesh-client --no-default-features
# Crates alone: `scripts/weight.sh --build` measures the time of a cold build and the size too.
check weight scripts/weight.sh
check api scripts/public-api.sh
check dashboards scripts/dashboards.py --check
check web scripts/web.sh
# Advisories are left out: their database cannot be fetched from every machine. `cargo deny check advisories` asks it.
check deny cargo deny --log-level error check bans licenses sources

if [ ${#failed[@]} -gt 0 ]; then
    printf '\ncheck: failed: %s\n' "${failed[*]}"
    exit 1
fi
printf '\ncheck: all eight passed\n'
