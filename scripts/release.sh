#!/usr/bin/env bash
# Builds the binary for production, guided by a profile: built once so that it counts what runs, put under load, and built again for what
# ran most. Prints where it lies. Takes three release builds and two minutes; where nothing changed, a moment. Flags for rustc are taken from
# RUSTFLAGS, and not from files of cargo's configuration.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/setup.sh build demo profile
host=$(rustc -vV | sed -n 's/^host: //p')
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
training=$target/$host/training trained=$target/$host/trained
raw=$target/profile/raw profile=$target/profile/merged.profdata
unset CARGO_ENCODED_RUSTFLAGS

say() { printf 'release: %s\n' "$*" >&2; }

# build PROFILE FLAG: for this machine by name, so that the flag is for what is built and not for what builds.
build() {
    # Separated as cargo has it, since paths may hold blanks.
    local flags=${RUSTFLAGS:-}
    CARGO_ENCODED_RUSTFLAGS="${flags:+${flags// /$'\x1f'}$'\x1f'}$2" \
        cargo build --quiet --workspace --profile "$1" --target "$host" --bin fairmesh
}

mkdir -p "$target/profile"
exec 9>"$target/profile/lock"
flock -n 9 || { say "waiting for another one that builds here"; flock 9; }

say "building what puts it under load"
cargo build --quiet --release --workspace --bin fairmesh-bench
say "building what counts"
build training "-Cprofile-generate=$raw"
if [ ! -e "$profile" ] || [ "$training/fairmesh" -nt "$profile" ]; then
    say "putting it under load"
    rm -rf "$raw"
    # Processes of the same program add up in a few files.
    export LLVM_PROFILE_FILE="$raw/%4m.profraw"
    "$target/release/fairmesh-bench" pgo-workload --fairmesh "$training/fairmesh" >&2
    # All else that runs in production: what no profile has seen is taken for rare.
    "$training/fairmesh" demo --quick >&2 || say "calls failed, as they may on a busy machine; what ran is counted all the same"
    "$(rustc --print sysroot)/lib/rustlib/$host/bin/llvm-profdata" merge -o "$profile.new" "$raw"/*.profraw
    # Cargo does not look into profiles.
    rm -rf "$trained"
    mv "$profile.new" "$profile"
fi
say "building for what ran"
build trained "-Cprofile-use=$profile"
printf '%s\n' "$trained/fairmesh"
