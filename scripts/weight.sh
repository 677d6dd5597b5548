#!/usr/bin/env bash
# What the library costs a program that calls services over HTTP/1.1: crates, and with --build seconds of a cold release build and bytes
# of the stripped binary. Fails above its bounds. The program is the first one of the README; with the default features it is compiled too, since
# in the workspace other crates turn on features that it would not have.
set -euo pipefail
cd "$(dirname "$0")/.."

max_crates=59
max_bytes=5800000
# With the profile of docs/library.md.
max_bytes_small=3500000
small='opt-level = "s"
lto = "fat"
codegen-units = 1
panic = "abort"'
# With the default features: identities and mutual TLS, and regular expressions.
max_crates_default=117

root=$PWD
folder=$(realpath -m "${CARGO_TARGET_DIR:-target}")/weight
mkdir -p "$folder/src"
# The versions of the workspace, and no look-up.
cp Cargo.lock "$folder/Cargo.lock"
cat >"$folder/src/main.rs" <<'RUST'
use fairmesh_client::{Body, Mesh};

#[tokio::main]
async fn main() {
    if let Err(error) = call().await {
        eprintln!("{error}");
    }
}

async fn call() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let mesh = Mesh::connect().await?;
    let hello = mesh.service("shop/hello")?;
    let response = hello.send(http::Request::get("/").body(Body::empty())?).await?;
    println!("{}", response.status());
    Ok(())
}
RUST

# manifest OPTIONS PROFILE: the program with these options of its dependency, and lines of its profile.
manifest() {
    cat >"$folder/Cargo.toml" <<TOML
[package]
name = "caller"
version = "0.0.0"
edition = "2024"

[workspace]

[dependencies]
fairmesh-client = { path = "$root/crates/library/client"$1 }
http = "1"
tokio = { version = "1", features = ["macros", "rt-multi-thread"] }

# As the workspace has it, so that both share what they can.
[profile.dev]
debug = "line-tables-only"

[profile.release]
strip = true
$2
TOML
}

# crates: how many are built, without the program itself.
crates() {
    local tree
    tree=$(cargo tree --quiet --offline --manifest-path "$folder/Cargo.toml" --edges normal,build --prefix none)
    printf '%s\n' "$tree" | sed 's/ (\*)$//; s/ (proc-macro)$//' | sort -u | grep -vc '^caller '
}

# weigh NAME OPTIONS BOUND BUILD [BYTES [PROFILE]]: prints one line.
weigh() {
    local name=$1 bound=$3 count line
    manifest "$2" "${6:-}"
    count=$(crates)
    line="$name: $count crates (at most $bound)"
    if [ "$4" = --build ]; then
        local began bytes
        rm -rf "$folder/target"
        began=$(date +%s)
        CARGO_TARGET_DIR="$folder/target" cargo build --quiet --offline --release --manifest-path "$folder/Cargo.toml"
        bytes=$(stat -c %s "$folder/target/release/caller")
        line="$line, $(($(date +%s) - began)) s, $bytes bytes"
        [ -z "${5:-}" ] || [ "$bytes" -le "$5" ] || failed="$name: $bytes bytes are more than $5"
        rm -rf "$folder/target"
    fi
    printf 'weight: %s\n' "$line"
    [ "$count" -le "$bound" ] || failed="$count crates are more than $bound; see the tree with: cargo tree --manifest-path $folder/Cargo.toml"
}

# tokio_features: fails if the program, as `manifest` wrote it, turns on parts of tokio that only tests need, or all of them.
tokio_features() {
    local tree
    tree=$(cargo tree --quiet --offline --manifest-path "$folder/Cargo.toml" --edges normal,build,features --prefix none)
    if grep -E '^tokio feature "(full|test-util|process|signal|fs)"' <<<"$tree"; then
        failed="the library turns on a feature of tokio that callers do not need"
    fi
}

# compiles: the program as `manifest` wrote it, with what the workspace has compiled already.
compiles() {
    if ! CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$root/target}" cargo check --quiet --offline --manifest-path "$folder/Cargo.toml"; then
        failed="the first program of the README does not compile outside of the workspace"
    fi
}

failed=
weigh lean ', default-features = false' "$max_crates" "${1:-}" "$max_bytes"
[ "${1:-}" != --build ] || weigh small ', default-features = false' "$max_crates" --build "$max_bytes_small" "$small"
tokio_features
weigh default '' "$max_crates_default" "${1:-}"
tokio_features
compiles
if [ -n "$failed" ]; then
    printf 'weight: %s\n' "$failed" >&2
    exit 1
fi
