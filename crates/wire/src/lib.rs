//! The contracts of Fairmesh: protobuf and gRPC types, their conversion to and from the model, and how two processes
//! connect. It sits right above `fairmesh-model`; everything that speaks to another process, or keeps bytes that
//! another process will read, stands on it.
//!
//! * [`v1`] is generated from `proto/fairmesh/v1`, [`lookaside`] and [`grpc_lookup`] from what lies beside it.
//! * [`convert`] turns messages into model values, validating them, and back.
//! * [`records`] and [`shards`] are the bytes that stand at RIB keys.
//! * [`aside`] does what takes long away from the loops that serve.
//! * [`transport`] makes and accepts connections; [`handshake`] settles the protocol version on them; [`rpc`] holds the
//!   clients, the services and their size limits; [`watch`] is what changes of the RIB travel on.
//!
//! Records of the RIB are protobuf, as the calls are: one schema language, and readers skip fields that a newer writer
//! added. Serialising the model with serde was rejected: it would make every rename in the model a change of format.

mod aside;
pub mod convert;
pub mod environment;
pub mod handshake;
mod lines;
pub mod records;
pub mod rpc;
pub mod shards;
pub mod transport;
pub mod watch;

pub use aside::aside;
pub use handshake::software_of;
pub use lines::Lines;
pub use transport::{identity_of, on_behalf_of, pass_on_for};

/// Picks for callers that follow no records: the generated types of `proto/fairmesh/lookaside`, documented there.
// The name of the package tells the way from there to `v1`.
#[allow(missing_docs, missing_debug_implementations, unreachable_pub)]
#[allow(clippy::all, clippy::too_many_lines, clippy::cognitive_complexity, clippy::disallowed_methods)]
pub mod lookaside {
    pub mod v1 {
        tonic::include_proto!("fairmesh.lookaside.v1");
    }
}

/// gRPC's Route Lookup Service: the generated types of `proto/grpc/lookup/v1`, documented there.
#[allow(missing_docs, missing_debug_implementations, unreachable_pub)]
#[allow(clippy::all, clippy::too_many_lines, clippy::cognitive_complexity, clippy::disallowed_methods)]
pub mod grpc_lookup {
    tonic::include_proto!("grpc.lookup.v1");
}

/// The generated protobuf and gRPC types of `proto/fairmesh/v1`, documented there.
// Our lints are for code that people wrote.
#[allow(missing_docs, missing_debug_implementations, unreachable_pub)]
#[allow(clippy::all, clippy::too_many_lines, clippy::cognitive_complexity, clippy::disallowed_methods)]
pub mod v1 {
    tonic::include_proto!("fairmesh.v1");
}
