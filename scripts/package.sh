#!/usr/bin/env bash
# Packages the binary: stripped, with its debug symbols in a file of their own, as a tarball, a deb and an OCI image. Prints their names.
#
# BINARY= packages one that is built already, such as that of `make release`; else a release build is made. OUT= is the folder
# of the packages (target/package). The same sources and binary give the same packages, byte by byte.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf 'package: %s\n' "$*" >&2; }
die() { say "$@"; exit 1; }

for tool in objcopy strip dpkg-deb gzip sha256sum ldd; do
    command -v "$tool" >/dev/null || die "$tool is missing. Run: apt-get install binutils dpkg gzip coreutils libc-bin"
done

target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
out=$(realpath -m "${OUT:-$target/package}")
if [ -z "${BINARY:-}" ]; then
    scripts/setup.sh build
    cargo build --quiet --release --workspace --bin fairmesh
    BINARY=$target/release/fairmesh
fi
binary=$(realpath -e "$BINARY")
level=${COMPRESSION:-9}
version=$("$binary" --version | cut -d " " -f 2)
architecture=$(uname -m)
case $architecture in x86_64) debian=amd64 ;; aarch64) debian=arm64 ;; *) die "no packages for $architecture" ;; esac
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 0)}
name=fairmesh-$version-$architecture

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$out"
rm -f "$out/fairmesh"[-_]*

# archive FOLDER: a tar of its contents whose bytes depend on nothing else.
archive() {
    tar --create --directory "$1" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" .
}

# Symbols apart, found by debuggers through the build id, and named within the binary.
root=$work/root
install -D -m 755 "$binary" "$root/usr/bin/fairmesh"
build_id=$(readelf -n "$binary" | sed -n 's/.*Build ID: //p')
[ -n "$build_id" ] || die "the binary has no build id"
symbols=$work/debug/usr/lib/debug/.build-id/${build_id:0:2}/${build_id:2}.debug
mkdir -p "$(dirname "$symbols")"
objcopy --only-keep-debug --compress-debug-sections=zlib "$binary" "$symbols"
strip --strip-debug --strip-unneeded "$root/usr/bin/fairmesh"
objcopy --add-gnu-debuglink="$symbols" "$root/usr/bin/fairmesh"
chmod 644 "$symbols"
archive "$work/debug" | gzip -n "-$level" > "$out/$name-debug.tar.gz"

# What is beside the binary, from the same definitions as --help.
"$binary" man "$work/man"
mkdir -p "$root/usr/share/man/man1"
for page in "$work"/man/*.1; do gzip -n -9 < "$page" > "$root/usr/share/man/man1/$(basename "$page").gz"; done
completion() { mkdir -p "$root/usr/share/$(dirname "$2")"; "$binary" completions "$1" > "$root/usr/share/$2"; }
completion bash bash-completion/completions/fairmesh
completion zsh zsh/vendor-completions/_fairmesh
completion fish fish/vendor_completions.d/fairmesh.fish
install -d "$root/usr/share/fairmesh"
"$binary" schema > "$root/usr/share/fairmesh/documents.schema.json"
install -D -m 644 LICENSE "$root/usr/share/doc/fairmesh/copyright" 2>/dev/null \
    || echo 'Apache-2.0, https://www.apache.org/licenses/LICENSE-2.0' | install -D -m 644 /dev/stdin "$root/usr/share/doc/fairmesh/copyright"
for file in deploy/grafana/*.json deploy/prometheus/{rules,alerts}.yaml; do
    install -D -m 644 "$file" "$root/usr/share/fairmesh/${file#deploy/}"
done
install -m 644 deploy/README.md "$root/usr/share/doc/fairmesh/README.systemd.md"
install -m 644 web/THIRD-PARTY.md "$root/usr/share/doc/fairmesh/THIRD-PARTY.web.md"
for unit in deploy/*.service; do
    sed 's|/usr/local/bin/|/usr/bin/|g' "$unit" | install -D -m 644 /dev/stdin "$root/usr/lib/systemd/system/$(basename "$unit")"
done
install -D -m 644 deploy/fairmesh.sysusers.conf "$root/usr/lib/sysusers.d/fairmesh.conf"

# Unpacked over /, or anywhere. Links instead of copies: the binary has hundreds of megabytes in a debug build.
mkdir "$work/tarball"
cp -al "$root" "$work/tarball/$name"
archive "$work/tarball" | gzip -n "-$level" > "$out/$name.tar.gz"

deb=$work/deb
cp -al "$root" "$deb"
mkdir -p "$deb/DEBIAN" "$deb/etc/fairmesh"
cat > "$deb/DEBIAN/control" <<CONTROL
Package: fairmesh
Version: $version
Architecture: $debian
Maintainer: Fairmesh <https://github.com/fairmesh/fairmesh>
Section: net
Priority: optional
Depends: libc6
Recommends: nftables
Installed-Size: $(du -sk "$root" | cut -f 1)
Homepage: https://github.com/fairmesh/fairmesh
Description: service mesh: control plane, agent, proxy and command line
 Programs call services by name, and every call goes straight to the right
 server. Units for systemd are installed, and none is enabled.
CONTROL
# Units run on until their machine's operator restarts them: an upgrade of the package takes no call down.
cat > "$deb/DEBIAN/postinst" <<'POSTINST'
#!/bin/sh
set -e
if [ -z "$DPKG_ROOT" ] && command -v systemd-sysusers >/dev/null; then systemd-sysusers fairmesh.conf; fi
if [ -z "$DPKG_ROOT" ] && [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
POSTINST
chmod 755 "$deb/DEBIAN/postinst"
(cd "$deb" && find usr -type f | LC_ALL=C sort | xargs md5sum > DEBIAN/md5sums)
dpkg-deb --root-owner-group -Zgzip "-z$level" --build "$deb" "$out/fairmesh_${version}_$debian.deb" >&2

# The image: this binary and the libraries that it loads, for a user of its own.
image=$work/image layer=$work/layer
mkdir -p "$image/blobs/sha256" "$layer/etc" "$layer/usr/bin" "$layer/run/fairmesh" "$layer/var/lib/fairmesh" "$layer/tmp"
chmod 1777 "$layer/tmp"
chmod 777 "$layer/run/fairmesh" "$layer/var/lib/fairmesh"
ln "$root/usr/bin/fairmesh" "$layer/usr/bin/"
echo 'fairmesh:x:65532:65532::/var/lib/fairmesh:/sbin/nologin' > "$layer/etc/passwd"
echo 'fairmesh:x:65532:' > "$layer/etc/group"
ldd "$binary" | sed -nE 's|.*=> (/[^ ]+) .*|\1|p; s|^\s*(/[^ ]+) .*|\1|p' | while read -r library; do
    install -D -m 755 "$(realpath "$library")" "$layer$library"
done
# blob FILE MEDIA_TYPE: stores a file by its digest, and prints its descriptor.
blob() {
    local digest size
    digest=$(sha256sum "$1" | cut -d ' ' -f 1)
    size=$(stat -c %s "$1")
    ln "$1" "$image/blobs/sha256/$digest"
    printf '{"mediaType":"%s","digest":"sha256:%s","size":%s}' "$2" "$digest" "$size"
}
archive "$layer" > "$work/layer.tar"
diff_id=$(sha256sum "$work/layer.tar" | cut -d ' ' -f 1)
gzip -n "-$level" < "$work/layer.tar" > "$work/layer.tar.gz"
layer_descriptor=$(blob "$work/layer.tar.gz" application/vnd.oci.image.layer.v1.tar+gzip)
created=$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y-%m-%dT%H:%M:%SZ)
cat > "$work/config.json" <<CONFIG
{"created":"$created","architecture":"$debian","os":"linux","config":{"User":"65532:65532","Entrypoint":["/usr/bin/fairmesh"],"Cmd":["--help"],"WorkingDir":"/var/lib/fairmesh","Labels":{"org.opencontainers.image.title":"fairmesh","org.opencontainers.image.version":"$version"}},"rootfs":{"type":"layers","diff_ids":["sha256:$diff_id"]},"history":[{"created":"$created","created_by":"scripts/package.sh"}]}
CONFIG
config_descriptor=$(blob "$work/config.json" application/vnd.oci.image.config.v1+json)
printf '{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":%s,"layers":[%s]}' \
    "$config_descriptor" "$layer_descriptor" > "$work/manifest.json"
manifest_descriptor=$(blob "$work/manifest.json" application/vnd.oci.image.manifest.v1+json)
printf '{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[%s]}' \
    "${manifest_descriptor%\}},\"annotations\":{\"org.opencontainers.image.ref.name\":\"fairmesh:$version\"},\"platform\":{\"architecture\":\"$debian\",\"os\":\"linux\"}}" \
    > "$image/index.json"
echo '{"imageLayoutVersion":"1.0.0"}' > "$image/oci-layout"
archive "$image" > "$out/fairmesh-$version-$architecture-oci.tar"

(cd "$out" && sha256sum "fairmesh"[-_]* > SHA256SUMS)
printf '%s\n' "$out/fairmesh"[-_]*
