//! Compiles the demo's own protocol without protoc.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=../../../proto/fairmesh/demo");
    let descriptors = protox::compile(["fairmesh/demo/v1/shop.proto"], ["../../../proto"])?;
    tonic_prost_build::compile_fds(descriptors)?;
    Ok(())
}
