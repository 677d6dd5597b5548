//! Identities of processes: certificates with SPIFFE ids, the authority that issues certificates, mutual TLS, and
//! renewal.
//!
//! The crate sits above `rib` and `wire`, whose trait [`TlsIdentity`](fairmesh_wire::transport::TlsIdentity) it
//! implements. Apart from the proxy's listeners, only this crate depends on rustls; only this crate depends on rcgen.
//!
//! * [`Authority`] is the certificate authority of a control plane: a root, whose key may be stored elsewhere, and an
//!   intermediate.
//! * [`Trust`] verifies chains; [`Workload`] is a process's identity and secures its connections.
//! * [`SignedMessage`](signed_message) and [`JoinToken`] protect requests for certificates on untrusted paths.
//! * [`Signer`] signs handshakes of listeners, with a key here or on a key server.
//! * [`WorkloadApi`] takes an identity from SPIRE or another implementation of SPIFFE's API.
//! * [`renewal`] renews an identity, and [`follow_revocations`] keeps its revocations current.
//!
//! A private key never leaves the process that created it: an authority only sees a signing request. Sending keys
//! together with certificates was rejected, because each hop could then impersonate the service. The SPIFFE Workload
//! API is the exception: there the agent creates the keys of programs on its machine.

mod bundle_document;
mod bundle_file;
pub mod call_statement;
mod certificate_authority;
mod certificate_info;
mod chain_refusal;
mod chain_verification;
mod clock;
mod credentials;
mod error;
mod federation;
mod host_certificate;
pub mod issue_response;
mod join_token;
mod join_token_store;
mod jwt_svid;
mod member_identity;
mod one_way_tls;
mod pem_files;
mod private_key;
mod program;
pub mod renewal;
mod revocations;
pub mod signed_message;
mod signer;
mod svid;
mod tls_config;
mod tls_stream;
mod tracked_connections;
mod trust_domain_choice;
mod web_roots;
mod workload;
mod workload_api;

pub use bundle_document::{
    BundleDocumentError, BundleHints, MAX_BUNDLE_DOCUMENT, NewestDocument, read_bundle_document,
    write_bundle_document,
};
pub use bundle_file::follow_bundle;
pub use certificate_authority::{Authority, Issued, LIFETIME, Reread, renews_itself};
pub use certificate_info::CertificateInfo;
pub use chain_refusal::{REPAIR_REVOCATIONS, Refused};
pub use chain_verification::{CLOCK_SKEW, Trust, Usage};
pub use clock::{Clock, SystemClock};
pub use credentials::Credentials;
pub use error::IdentityError;
pub use host_certificate::HostCertificate;
pub use join_token::{JoinToken, MAX_TOKEN_TTL, digest as sha256};
pub use join_token_store::{Joining, TokenGrant, TokenRefused, Tokens};
pub use jwt_svid::check_audience;
pub use member_identity::Member;
pub use one_way_tls::OneWayTls;
pub use private_key::PrivateKey;
pub use program::{
    FIRST_CERTIFICATE_WAIT, IdentityRequest, LateIdentity, Membership, ProgramIdentity, ServerIdentity,
};
pub use revocations::{RevocationSource, follow_revocations};
pub use signer::{
    RemoteKey, RemoteKeyConfig, RemoteKeyError, RemoteKeys, SignatureCounts, SignedBy, Signer,
    certificate_verify,
};
pub use tls_config::crypto_provider;
pub use tls_stream::CERTIFICATE_REJECTED;
pub use tracked_connections::RevocationList;
pub use trust_domain_choice::TrustDomainChoice;
pub use web_roots::WebRoots;
pub use workload::Workload;
pub use workload_api::WorkloadApi;
