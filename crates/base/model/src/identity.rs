use std::fmt;

use crate::SpiffeId;

/// Identity of a caller of the control plane or an agent, as established by the transport.
///
/// Every handler receives an identity, so that authorisation can be added without changing handlers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Identity {
    /// An unauthenticated peer: plaintext TCP.
    #[default]
    Anonymous,
    /// A process on this machine, identified by the user id that the kernel reports for the peer of a Unix socket.
    Local {
        /// Effective user id of the peer when it connected.
        uid: u32,
    },
    /// The SPIFFE id of a verified certificate.
    Spiffe(SpiffeId),
    /// The SPIFFE id of a verified certificate from a federated trust domain. The peer is no member of the mesh; it has only
    /// the rights that a policy gives to its whole id.
    Federated(SpiffeId),
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Anonymous => f.write_str("anonymous"),
            Self::Local { uid } => write!(f, "local uid {uid}"),
            Self::Spiffe(id) | Self::Federated(id) => id.fmt(f),
        }
    }
}
