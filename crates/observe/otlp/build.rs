//! Compiles the messages of OTLP in use, without protoc.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=../../../proto/opentelemetry");
    let file = "opentelemetry/proto/collector/trace/v1/trace_service.proto";
    let descriptors = protox::compile([file], ["../../../proto"])?;
    tonic_prost_build::compile_fds(descriptors)?;
    Ok(())
}
