//! Identities of processes: certificates with SPIFFE ids, the authority that issues them, mutual TLS, and renewal.
//!
//! The crate sits above `wire`, whose [`TlsIdentity`](fairmesh_wire::transport::TlsIdentity) it implements, and `rib`. Only
//! this crate and the proxy's listeners name rustls; only this crate names rcgen.
//!
//! * [`Authority`] is the certificate authority of a control plane: a root, whose key may be stored elsewhere, and an
//!   intermediate.
//! * [`Trust`] verifies chains; [`Workload`] is a process's identity and secures its connections.
//! * [`SignedMessage`](signed) and [`JoinToken`] protect requests for certificates on untrusted paths.
//! * [`Signer`] signs handshakes of listeners, with a key here or on a key server.
//! * [`WorkloadApi`] takes an identity from SPIRE or another implementation of SPIFFE's API.
//! * [`renewal`] renews an identity, and [`follow_revocations`] keeps its revocations current.
//!
//! Private keys never leave the process that made them: an authority sees a signing request. Sending keys with certificates
//! was rejected, since each hop could then impersonate the service. SPIFFE's API is the exception: there the agent makes the
//! key of a program on its machine.

mod authority;
mod bundle_document;
mod bundle_file;
mod clock;
mod connections;
mod credentials;
mod error;
mod federation;
mod files;
mod host_certificate;
mod info;
pub mod issue_response;
mod key;
mod member;
mod one_way_tls;
mod program;
mod refused;
pub mod renewal;
mod revocations;
pub mod signed;
mod signer;
pub mod statement;
mod svid;
mod tls_config;
mod tls_stream;
mod token;
mod tokens;
mod trust;
mod web_roots;
mod workload;
mod workload_api;

pub use authority::{Authority, Issued, LIFETIME, Reread, renews_itself};
pub use bundle_document::{BundleDocumentError, BundleHints, MAX_BUNDLE_DOCUMENT, read_bundle_document};
pub use bundle_file::follow_bundle;
pub use clock::{Clock, SystemClock};
pub use connections::RevocationList;
pub use credentials::Credentials;
pub use error::IdentityError;
pub use host_certificate::HostCertificate;
pub use info::CertificateInfo;
pub use key::PrivateKey;
pub use member::Member;
pub use one_way_tls::OneWayTls;
pub use program::{IdentityRequest, LateIdentity, Membership, ProgramIdentity, ServerIdentity};
pub use refused::Refused;
pub use revocations::{RevocationSource, follow_revocations};
pub use signer::{
    RemoteKey, RemoteKeyConfig, RemoteKeyError, SignatureCounts, SignedBy, Signer, certificate_verify,
};
pub use tls_config::crypto_provider;
pub use token::{JoinToken, MAX_TOKEN_TTL, digest as sha256};
pub use tokens::{Joining, TokenGrant, TokenRefused, Tokens};
pub use trust::{CLOCK_SKEW, Trust, Usage};
pub use web_roots::WebRoots;
pub use workload::Workload;
pub use workload_api::WorkloadApi;
