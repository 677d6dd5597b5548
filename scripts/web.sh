#!/usr/bin/env bash
# Checks and builds the web page, and compares what is built with the files that are committed in web/dist; --update writes them.
# Without Node or its registry it compares nothing, says so, and fails in continuous integration alone.
set -euo pipefail
cd "$(dirname "$0")/../web"

skip() {
    printf 'web: not compared: %s\n' "$1" >&2
    [ -z "${CI:-}" ]
    exit
}

command -v npm >/dev/null || skip "npm is missing; install Node 20.19 or newer"
node -e 'const [major, minor] = process.versions.node.split(".").map(Number); process.exit(major > 20 || (major === 20 && minor >= 19) ? 0 : 1)' ||
    skip "Node is older than 20.19"
# What is installed is that of the lock file, or is installed anew.
if ! cmp -s package-lock.json node_modules/.locked; then
    npm ci --no-audit --no-fund --silent || skip "its dependencies cannot be fetched"
    cp package-lock.json node_modules/.locked
fi

npm run --silent check
# The output of the very run that failed: another one may pass.
tested=$(npm test --silent) || { printf '%s\n' "$tested" >&2; exit 1; }
if [ "${1:-}" = --update ]; then
    exec npm run --silent build -- --logLevel warn
fi
built=$(mktemp -d)
trap 'rm -rf "$built"' EXIT
npm run --silent build -- --logLevel warn --outDir "$built" --emptyOutDir
# By content: releases of Node compress differently.
for folder in "$built" dist; do
    for file in "$folder"/*; do
        name=$(basename "$file" .gz)
        case $file in
            *.gz) gzip -dc "$file" | sha256sum ;;
            *) sha256sum <"$file" ;;
        esac | sed "s/-$/$name/"
    done >"$built.$(basename "$folder")"
done
trap 'rm -rf "$built" "$built".*' EXIT
if ! diff "$built.$(basename "$built")" "$built.dist" >&2; then
    echo "web: web/dist is not what web/ builds: run scripts/web.sh --update" >&2
    exit 1
fi
