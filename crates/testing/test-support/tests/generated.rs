//! The generated types of `wire` are checked in, so that users of the library need no protobuf compiler. This test is
//! in another crate, so that it runs even if `wire` does not compile.

#![allow(clippy::unwrap_used, reason = "what a test cannot do without has failed it")]

use std::{collections::BTreeMap, env, fs, path::Path};

/// If set, the files are written again.
const UPDATE: &str = "UPDATE_GENERATED";

const FILES: [&str; 15] = [
    "fairmesh/v1/rib.proto",
    "fairmesh/v1/records.proto",
    "fairmesh/v1/registry.proto",
    "fairmesh/v1/checker.proto",
    "fairmesh/v1/admin.proto",
    "fairmesh/v1/imbalance.proto",
    "fairmesh/v1/maps.proto",
    "fairmesh/v1/quota.proto",
    "fairmesh/v1/identity.proto",
    "fairmesh/v1/signals.proto",
    "fairmesh/v1/traffic.proto",
    "fairmesh/keys/v1/keys.proto",
    "fairmesh/lookaside/v1/lookaside.proto",
    "grpc/lookup/v1/rls.proto",
    "spiffe/workload/workload.proto",
];

#[test]
fn generated_types_match_proto_files() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let descriptors = protox::compile(FILES, [root.join("proto")]).unwrap();
    let out = tempfile::tempdir().unwrap();
    // Ordered maps, so that a record has only one encoding, and unchanged records have equal bytes.
    tonic_prost_build::configure()
        .bytes(".")
        .btree_map(".")
        // These messages contain a token or a private key, which their own Debug implementations hide:
        // `wire/src/handshake.rs`, `wire/src/lib.rs`.
        .skip_debug([".fairmesh.v1.HelloRequest", ".X509SVID"])
        // Claims of tokens are never read. The types of Google would add another crate to every program.
        .extern_path(".google.protobuf.Struct", "()")
        .build_transport(false)
        .codec_path("crate::codegen::ProstCodec")
        .server_mod_attribute(".", "#[cfg(feature = \"server\")]")
        .out_dir(out.path())
        .compile_fds(descriptors)
        .unwrap();
    let (current, kept) = (out.path(), root.join("crates/protocol/wire/src/generated"));
    if env::var_os(UPDATE).is_some() {
        files(&kept).keys().for_each(|name| fs::remove_file(kept.join(name)).unwrap());
        for (name, text) in files(current) {
            fs::write(kept.join(name), text).unwrap();
        }
    }
    let (current, kept) = (files(current), files(&kept));
    let differ = current.iter().filter(|(name, text)| kept.get(*name) != Some(*text)).map(|(name, _)| name);
    let surplus = kept.keys().filter(|name| !current.contains_key(*name));
    let outdated: Vec<_> = differ.chain(surplus).collect();
    assert!(
        outdated.is_empty(),
        "crates/protocol/wire/src/generated: {outdated:?} are not those of proto/; run {UPDATE}=1 cargo test --workspace --test generated"
    );
}

/// The files of a folder by name.
fn files(folder: &Path) -> BTreeMap<String, String> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    let read = |entry: fs::DirEntry| {
        let text = fs::read_to_string(entry.path()).unwrap();
        // Without what only servers need; see `wire/src/codegen.rs`.
        (entry.file_name().into_string().unwrap(), text.replace("tonic::codegen::", "crate::codegen::"))
    };
    entries.map(read).collect()
}
