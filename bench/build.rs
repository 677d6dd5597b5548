//! Compiles the benchmarks' own protocol without protoc.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=../proto/fairmesh/bench");
    let descriptors = protox::compile(["fairmesh/bench/v1/echo.proto"], ["../proto"])?;
    tonic_prost_build::configure().bytes(".").compile_fds(descriptors)?;
    Ok(())
}
