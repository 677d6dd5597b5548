//! The protocol of Fairmesh: protobuf and gRPC types, their conversion to and from the model, and connections between
//! processes. Built on `fairmesh-model`, and used by every crate that communicates with other processes or stores
//! records.
//!
//! * [`v1`] is generated from `proto/fairmesh/v1`. [`keys`], [`lookaside`], [`grpc_lookup`] and [`spiffe`] are
//!   generated from the folders beside it.
//! * [`convert`] converts between messages and validated model values.
//! * [`record_encoding`] and [`shard_encoding`] encode the values of RIB keys.
//! * [`lock_file`] locks out other processes.
//! * [`run_blocking`] runs expensive work off the event loops.
//! * [`transport`] opens and accepts connections, which may begin with a header of the [`proxy_protocol`].
//! * [`handshake`] negotiates the protocol version. [`grpc_stubs`] has the clients and services with their size limits.
//! * [`watch`] is the protocol that delivers changes of the RIB.
//!
//! RIB records are encoded in protobuf like calls: there is one schema language, and readers skip fields that newer
//! writers added. Serialising the model with serde was rejected: renames in the model would change the format.

mod blocking_work;
mod codegen;
pub mod convert;
pub mod environment;
pub mod grpc_stubs;
pub mod handshake;
mod lock_file;
mod log_limiter;
pub mod proxy_protocol;
pub mod record_encoding;
pub mod shard_encoding;
pub mod transport;
pub mod watch;

pub use blocking_work::run_blocking;
pub use handshake::software_of;
pub use lock_file::lock_file;
pub use log_limiter::LogLimiter;
#[cfg(feature = "server")]
pub use transport::program_of;
pub use transport::{
    CallerAgent, ON_BEHALF_OF, RELAYED, STATEMENT, agent_of, identity_of, on_behalf_of, set_on_behalf_of,
};

/// Key server: signs for proxies and keeps the keys. Generated types of `proto/fairmesh/keys`, documented there.
#[allow(missing_docs, missing_debug_implementations, unreachable_pub)]
#[allow(clippy::all, clippy::too_many_lines, clippy::cognitive_complexity, clippy::disallowed_methods)]
pub mod keys {
    pub mod v1 {
        include!("generated/fairmesh.keys.v1.rs");
    }
}

/// Lookaside: picks endpoints for callers that hold no records. Generated types of `proto/fairmesh/lookaside`,
/// documented there.
// The number of nested modules must match the package name, since generated code refers to `v1` by a relative path.
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

    /// Formats the message without its private key.
    impl std::fmt::Debug for X509svid {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.debug_struct("X509svid").field("spiffe_id", &self.spiffe_id).finish_non_exhaustive()
        }
    }
}

/// The generated protobuf and gRPC types of `proto/fairmesh/v1`, documented there.
// The workspace lints apply only to hand-written code.
#[allow(missing_docs, missing_debug_implementations, unreachable_pub)]
#[allow(clippy::all, clippy::too_many_lines, clippy::cognitive_complexity, clippy::disallowed_methods)]
pub mod v1 {
    include!("generated/fairmesh.v1.rs");
}
