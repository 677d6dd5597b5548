//! A key server: signs TLS handshakes with private keys that never leave it (Canal Mesh §4.1.3, appendix B).
//!
//! A key server is for listeners whose machine should not hold the private key of their certificate. An example is a
//! gateway that many tenants share: each tenant runs its key server. Callers authenticate with mutual TLS and are
//! permitted by key. The crate is above `identity`, whose [`RemoteKey`](fairmesh_identity::RemoteKey) is the client.
//!
//! * [`KeyStore`] has the keys, encrypted in memory. A key is decrypted only while it signs.
//! * [`run`] serves `fairmesh.keys.v1.KeyServer`.
//!
//! The key server builds the message to sign from a transcript hash, so that callers can get signatures only for TLS
//! 1.3 handshakes. Returning session secrets, as key servers for TLS 1.2 with RSA do, was rejected: a stolen
//! connection would reveal them, and in TLS 1.3 there are no such secrets to return.

mod admin_pages;
mod error;
mod key_file;
mod key_permissions;
mod key_store;
mod metrics;
mod private_key;
mod run;
mod service;

pub use error::KeyServerError;
pub use key_permissions::{AllowedCaller, KeyFile};
pub use key_store::KeyStore;
pub use run::{KeyServerConfig, protect_memory, run};
