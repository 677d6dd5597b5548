use std::fmt;

use crate::SpiffeId;

/// The identity of a caller of the control plane or an agent, as authenticated by the transport.
///
/// Every handler receives the identity, so authorisation can be added without changing handlers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Identity {
    /// An unauthenticated peer, which connected over plaintext TCP.
    #[default]
    Anonymous,
    /// A process on this machine. The kernel reports the user id of the peer of a Unix socket.
    Local {
        /// Effective user id of the peer at the time of connecting.
        uid: u32,
    },
    /// The SPIFFE id in a verified certificate of the mesh's trust domain.
    Spiffe(SpiffeId),
    /// The SPIFFE id in a verified certificate of a federated trust domain. Such a peer is not a member of the mesh:
    /// it has only the rights that a policy gives to its full id.
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
