//! Compiles the OTLP protobuf messages in use without protoc.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=../../../proto/opentelemetry");
    let files = ["metrics/v1/metrics_service.proto", "trace/v1/trace_service.proto"]
        .map(|file| format!("opentelemetry/proto/collector/{file}"));
    let descriptors = protox::compile(files, ["../../../proto"])?;
    tonic_prost_build::compile_fds(descriptors)?;
    Ok(())
}
