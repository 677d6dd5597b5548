//! The contracts: protobuf and gRPC types, and their conversion to and from the model.

/// The generated protobuf and gRPC types of `proto/fairmesh/v1`, documented there.
#[allow(missing_docs, missing_debug_implementations, unreachable_pub, clippy::all, clippy::disallowed_methods)]
pub mod v1 {
    tonic::include_proto!("fairmesh.v1");
}
