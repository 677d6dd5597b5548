//! Compiles etcd's protobuf messages without protoc.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(["etcd.proto"], ["proto"])?;
    tonic_prost_build::configure().bytes(".").build_server(false).compile_fds(descriptors)?;
    Ok(())
}
