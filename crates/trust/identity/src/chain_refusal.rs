use fairmesh_model::{SpiffeId, SpiffePath, TrustDomain};

/// What repairs a record of revocations that processes cannot read. Those that refuse all operators for that accept it
/// over this socket only.
pub const REPAIR_REVOCATIONS: &str = "on the machine of the control plane, as its user or root: `fairmesh identity revoke ID \
     --replace-unreadable --control unix:DIR/control.sock`, with its data directory";

/// Maximum number of certificates that a peer may send.
pub(crate) const MAX_CHAIN: usize = 4;

/// Reason why a certificate chain is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The peer sent no certificate, or too many certificates.
    #[error("the peer sent {0} certificates, not 1 to {MAX_CHAIN}")]
    ChainLength(usize),
    /// The bytes are not an X.509 certificate.
    #[error("the certificate is not well-formed")]
    Malformed,
    /// The certificate has expired.
    #[error(
        "the certificate has expired; check the clocks of both machines, and whether the peer's agent reaches a control plane"
    )]
    Expired,
    /// The certificate is not valid yet.
    #[error("the certificate is not valid yet; check the clocks of both machines")]
    NotYetValid,
    /// No root of the bundle issued the certificate.
    #[error("the certificate was not issued by the trust domain {0}")]
    UnknownIssuer(TrustDomain),
    /// The certificate is for another usage, or belongs to an authority.
    #[error("the certificate is not for this use")]
    WrongUsage,
    /// The certificate does not have exactly one name that is a SPIFFE id.
    #[error("the certificate does not have exactly one name, a SPIFFE id")]
    NotOneId,
    /// The id belongs to another trust domain.
    #[error("the peer is {0}, of another trust domain")]
    OtherDomain(SpiffeId),
    /// The id belongs to a federated domain, but is neither an allowed caller nor the expected server.
    #[error(
        "the peer is {0}, of another trust domain, and no policy of this service names it; see `fairmesh identity federation list`"
    )]
    NotNamed(SpiffeId),
    /// The trust domain is no longer federated.
    #[error("the trust domain {0} is not federated; see `fairmesh identity federation list`")]
    NotFederated(TrustDomain),
    /// An operator revoked the certificate.
    #[error("the certificate of {0} is revoked; see `fairmesh identity list`")]
    Revoked(SpiffePath),
    /// The service's record names an id of the own trust domain, which no record can give to another service.
    #[error(
        "the record of the service names {0} as its identity, an id of this mesh's own trust domain; remove 'identity' from the service"
    )]
    OwnDomain(SpiffeId),
    /// This process never read a record of revocations that it understands.
    #[error(
        "the certificate of {0} may be revoked: the record of revocations cannot be read; upgrade this process, or replace the \
         record {REPAIR_REVOCATIONS}"
    )]
    RevocationsUnreadable(SpiffePath),
    /// The peer has another id than the expected one.
    #[error("the peer is {found}, not {expected}")]
    Unexpected {
        /// Id in the peer's certificate.
        found: SpiffeId,
        /// The expected identity.
        expected: String,
    },
    /// The chain has another defect.
    #[error("the certificate is refused: {0}")]
    Other(String),
    /// The signature was not made with the certificate's key.
    #[error("the signature does not belong to the certificate")]
    BadSignature,
}
