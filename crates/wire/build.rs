//! Compiles `proto/` without protoc.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=../../proto");
    let files = ["rib", "records", "registry", "admin"].map(|name| format!("fairmesh/v1/{name}.proto"));
    let descriptors = protox::compile(files, ["../../proto"])?;
    tonic_prost_build::configure().bytes(".").compile_fds(descriptors)?;
    Ok(())
}
