//! The generated types of `wire` are checked in, so that users of the library need no protobuf compiler. This test is
//! in another crate, so that it runs even if `wire` does not compile.

#![allow(clippy::unwrap_used, reason = "what a test cannot do without has failed it")]

use std::{collections::BTreeMap, env, fs, path::Path};

use prost_build::{Config, Module};
use prost_types::FileDescriptorProto;

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
    let (current, kept) = (generated(descriptors.file), root.join("crates/protocol/wire/src/generated"));
    if env::var_os(UPDATE).is_some() {
        files(&kept).keys().for_each(|name| fs::remove_file(kept.join(name)).unwrap());
        for (name, text) in &current {
            fs::write(kept.join(name), text).unwrap();
        }
    }
    let kept = files(&kept);
    let differ = current.iter().filter(|(name, text)| kept.get(*name) != Some(*text)).map(|(name, _)| name);
    let surplus = kept.keys().filter(|name| !current.contains_key(*name));
    let outdated: Vec<_> = differ.chain(surplus).collect();
    assert!(
        outdated.is_empty(),
        "crates/protocol/wire/src/generated: {outdated:?} are not those of proto/; run {UPDATE}=1 cargo test --workspace --test generated"
    );
}

/// The generated files by name.
fn generated(descriptors: Vec<FileDescriptorProto>) -> BTreeMap<String, String> {
    let services = tonic_prost_build::configure()
        .build_transport(false)
        .codec_path("crate::codegen::ProstCodec")
        .server_mod_attribute(".", "#[cfg(feature = \"server\")]")
        .service_generator();
    let mut config = Config::new();
    // Ordered maps, so that a record has only one encoding, and unchanged records have equal bytes.
    config.bytes(["."]).btree_map(["."]).service_generator(services);
    // These messages contain a token or a private key, which their own Debug implementations hide:
    // `wire/src/handshake.rs`, `wire/src/lib.rs`.
    config.skip_debug([".fairmesh.v1.HelloRequest", ".X509SVID"]);
    // Claims of tokens are never read. The types of Google would add another crate to every program.
    config.extern_path(".google.protobuf.Struct", "()");
    let modules = descriptors.into_iter().map(|file| (module(&file), file)).collect();
    let modules = config.generate(modules).unwrap().into_iter();
    modules.map(|(module, text)| (module.to_file_name_or("_"), without_servers(&text))).collect()
}

/// The file of the code generated from a proto file. The largest package has one for each proto file, and the others have
/// only one proto file.
fn module(file: &FileDescriptorProto) -> Module {
    let package = file.package();
    let proto = Path::new(file.name()).file_stem().unwrap().to_string_lossy();
    match package {
        "fairmesh.v1" => Module::from_parts(package.split('.').chain([&*proto])),
        _ => Module::from_protobuf_package_name(package),
    }
}

/// Replaces what only servers need; see `wire/src/codegen.rs`.
fn without_servers(text: &str) -> String {
    text.replace("tonic::codegen::", "crate::codegen::")
}

/// The files of a folder by name.
fn files(folder: &Path) -> BTreeMap<String, String> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    let read = |entry: fs::DirEntry| {
        (entry.file_name().into_string().unwrap(), fs::read_to_string(entry.path()).unwrap())
    };
    entries.map(read).collect()
}
