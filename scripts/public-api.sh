#!/usr/bin/env bash
# Compares what the library's crates show to programs with docs/api, or with --update writes it. fairmesh-client shows items of
# fairmesh-calls, whose other items are no part of it, nor is what is #[doc(hidden)].
# Rustdoc's JSON is unstable, and its flag accepted by the stable compiler for this alone; cargo-public-api would need a nightly one.
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(fairmesh-client fairmesh-server)
documented=("${packages[@]}" fairmesh-calls)
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")/api
mkdir -p "$target"
cat >"$target/rustdoc" <<'SH'
#!/bin/sh
RUSTC_BOOTSTRAP=1 exec rustdoc -Z unstable-options --output-format json "$@"
SH
chmod +x "$target/rustdoc"

selected=()
for package in "${documented[@]}"; do selected+=(-p "$package"); done
RUSTDOC=$target/rustdoc cargo doc --quiet --no-deps --lib "${selected[@]}" --features fairmesh-client/axum

failed=()
for package in "${packages[@]}"; do
    json=${CARGO_TARGET_DIR:-target}/doc/${package//-/_}.json
    kept=docs/api/$package.txt
    scripts/public_api.py "$json" "${CARGO_TARGET_DIR:-target}/doc/fairmesh_calls.json" >"$target/$package.txt"
    # A field or variant more would break programs that write or match all of them.
    if grep '^exhaustive ' "$target/$package.txt" >&2; then
        echo 'public-api: mark these #[non_exhaustive]' >&2
        exit 1
    fi
    if [ "${1:-}" = --update ]; then
        cp "$target/$package.txt" "$kept"
    elif ! diff -u "$kept" "$target/$package.txt"; then
        failed+=("$package")
    fi
done
if [ ${#failed[@]} -gt 0 ]; then
    printf 'public-api: %s changed; if that is meant, run scripts/public-api.sh --update and say it in CHANGELOG.md\n' "${failed[*]}" >&2
    exit 1
fi
