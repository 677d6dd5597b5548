use std::{io, net::SocketAddr, path::PathBuf};

use fairmesh_identity::IdentityError;
use fairmesh_model::TrustDomain;
use fairmesh_store::{StoreError, StoreLocation};
use fairmesh_wire::transport::BindError;

/// Why a control plane cannot start or continue.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The store cannot be opened.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A gRPC address cannot be listened on.
    #[error("gRPC: {0}")]
    Grpc(#[from] BindError),
    /// No gRPC address was given.
    #[error("no gRPC address is configured; give at least one, such as 127.0.0.1:7400")]
    NoAddress,
    /// The address of the admin pages and the HTTP API cannot be listened on.
    #[error(transparent)]
    Admin(#[from] fairmesh_pages::BindError),
    /// The address of spans cannot be listened on.
    #[error(
        "spans: cannot listen on {address}: {source}; choose a free address of this machine with --traces"
    )]
    Traces {
        /// The address that cannot be bound.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// The certificate authority cannot be opened.
    #[error("certificate authority: {0}")]
    Identity(#[from] IdentityError),
    /// The token issuer's keys cannot be read.
    #[error("the keys of the issuer of tokens (--oidc-jwks): {problem}")]
    Jwks {
        /// The file and its problem.
        problem: String,
    },
    /// The store is older than writes that the audit log recorded.
    #[error(
        "the store {place} is at revision {revision}, and audit.log has a write of revision {logged}: if it was restored from a \
         copy, start once with --new-store-id, so that readers of later revisions take a snapshot of it; if it is the wrong \
         store, correct --data-dir or --store"
    )]
    Restored {
        /// The store.
        place: StoreLocation,
        /// Revision of the store.
        revision: u64,
        /// The last revision in the audit log.
        logged: u64,
    },
    /// The store belongs to another trust domain.
    #[error(
        "the store belongs to the trust domain {recorded}, not {told}; omit --trust-domain, or give that one"
    )]
    OtherTrustDomain {
        /// The domain given in the configuration.
        told: TrustDomain,
        /// The domain in the records.
        recorded: TrustDomain,
    },
    /// The root of the trust domain is on another control plane of the store.
    #[error(
        "the trust domain {domain} has a root that is not in {}; copy bundle.pem and root.key from the control plane \
         that began it, and remove root.key afterwards", folder.display()
    )]
    NoIntermediate {
        /// The trust domain.
        domain: TrustDomain,
        /// Folder where this control plane expects the files.
        folder: PathBuf,
    },
    /// A task of the server ended unexpectedly.
    #[error("{part} ended: {reason}; start the control plane again, nothing acknowledged is lost")]
    Ended {
        /// Name of the part that the task served.
        part: &'static str,
        /// The cause.
        reason: String,
    },
}
