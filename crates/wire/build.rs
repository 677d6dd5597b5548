//! Compiles `proto/` without protoc.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=../../proto");
    let files = [
        "rib",
        "records",
        "registry",
        "checker",
        "admin",
        "imbalance",
        "maps",
        "quota",
        "identity",
        "signals",
        "traffic",
    ]
    .map(|name| format!("fairmesh/v1/{name}.proto"));
    let lookaside = ["fairmesh/lookaside/v1/lookaside.proto", "grpc/lookup/v1/rls.proto"].map(String::from);
    let files = files.into_iter().chain(lookaside);
    let descriptors = protox::compile(files, ["../../proto"])?;
    // Ordered maps, so that a record has one encoding and unchanged records have equal bytes.
    tonic_prost_build::configure().bytes(".").btree_map(".").compile_fds(descriptors)?;
    Ok(())
}
