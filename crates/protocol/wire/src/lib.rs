//! The protocol of Fairmesh: protobuf and gRPC types, their conversion to and from the model, and connections between
//! processes. It is built on `fairmesh-model`, and used by every crate that communicates with another process or
//! stores bytes for one.
//!
//! * [`v1`] is generated from `proto/fairmesh/v1`, [`keys`], [`lookaside`], [`grpc_lookup`] and [`spiffe`] from the
//!   folders beside it.
//! * [`convert`] converts messages to validated model values, and back.
//! * [`records`] and [`shards`] are the encodings of values at RIB keys.
//! * [`lock_file`] excludes other processes.
//! * [`run_blocking`] runs expensive work off the event loops.
//! * [`transport`] opens and accepts connections, which may begin with a header of the [`proxy_protocol`]; [`handshake`] negotiates the protocol version; [`rpc`] has the
//!   clients and services with their size limits; [`watch`] is the protocol for changes of the RIB.
//!
//! Records of the RIB are protobuf, as the calls are: one schema language, and readers skip fields that newer writers
//! added. Serialising the model with serde was rejected: renames in the model would change the format.

mod codegen;
pub mod convert;
pub mod environment;
pub mod handshake;
mod lock_file;
mod log_limiter;
mod offload;
pub mod proxy_protocol;
pub mod records;
pub mod rpc;
pub mod shards;
pub mod transport;
pub mod watch;

pub use handshake::software_of;
pub use lock_file::lock_file;
pub use log_limiter::LogLimiter;
pub use offload::run_blocking;
#[cfg(feature = "server")]
pub use transport::program_of;
pub use transport::{
    CallerAgent, ON_BEHALF_OF, RELAYED, STATEMENT, agent_of, identity_of, on_behalf_of, set_on_behalf_of,
};

/// Signatures with the keys of a key server: the generated types of `proto/fairmesh/keys`, documented there.
#[allow(missing_docs, missing_debug_implementations, unreachable_pub)]
#[allow(clippy::all, clippy::too_many_lines, clippy::cognitive_complexity, clippy::disallowed_methods)]
pub mod keys {
    pub mod v1 {
        include!("generated/fairmesh.keys.v1.rs");
    }
}

/// Picks for callers without records: the generated types of `proto/fairmesh/lookaside`, documented there.
// The package name determines the path to `v1`.
#[allow(missing_docs, missing_debug_implementations, unreachable_pub)]
#[allow(clippy::all, clippy::too_many_lines, clippy::cognitive_complexity, clippy::disallowed_methods)]
pub mod lookaside {
    pub mod v1 {
        include!("generated/fairmesh.lookaside.v1.rs");
    }
}

/// gRPC's Route Lookup Service: the generated types of `proto/grpc/lookup/v1`, documented there.
#[allow(missing_docs, missing_debug_implementations, unreachable_pub)]
#[allow(clippy::all, clippy::too_many_lines, clippy::cognitive_complexity, clippy::disallowed_methods)]
pub mod grpc_lookup {
    include!("generated/grpc.lookup.v1.rs");
}

/// The SPIFFE Workload API: the generated types of `proto/spiffe/workload`, documented there.
#[allow(missing_docs, missing_debug_implementations, unreachable_pub)]
#[allow(clippy::all, clippy::too_many_lines, clippy::cognitive_complexity, clippy::disallowed_methods)]
pub mod spiffe {
    include!("generated/_.rs");

    /// Without the private key.
    impl std::fmt::Debug for X509svid {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.debug_struct("X509svid").field("spiffe_id", &self.spiffe_id).finish_non_exhaustive()
        }
    }
}

/// The generated protobuf and gRPC types of `proto/fairmesh/v1`, documented there.
// Our lints apply to hand-written code.
#[allow(missing_docs, missing_debug_implementations, unreachable_pub)]
#[allow(clippy::all, clippy::too_many_lines, clippy::cognitive_complexity, clippy::disallowed_methods)]
pub mod v1 {
    include!("generated/fairmesh.v1.rs");
}
