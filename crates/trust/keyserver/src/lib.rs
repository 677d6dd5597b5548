//! A key server: signs TLS handshakes with private keys that never leave it (Canal Mesh §4.1.3, appendix B).
//!
//! It is for listeners whose machine should not hold the key of their certificate, such as a gateway that many tenants share:
//! the tenant runs the key server. Callers are known by mutual TLS and permitted by key. It is above `identity`, whose
//! [`RemoteKey`](fairmesh_identity::RemoteKey) is the other side.
//!
//! * [`KeyStore`] has the keys, encrypted in memory; one is open only while it signs.
//! * [`run`] serves `fairmesh.keys.v1.KeyServer`.
//!
//! It makes the message that it signs, from the transcript hash, so that a caller gets nothing signed but handshakes of TLS 1.3.
//! Returning the secrets of sessions, as key servers for TLS 1.2 with RSA do, was rejected: a stolen connection would reveal
//! them, and TLS 1.3 has none to return.

mod admin;
mod error;
mod key_file;
mod key_store;
mod metrics;
mod permissions;
mod private_key;
mod run;
mod service;

pub use error::KeyServerError;
pub use key_store::KeyStore;
pub use permissions::{AllowedCaller, KeyFile};
pub use run::{KeyServerConfig, protect_memory, run};
