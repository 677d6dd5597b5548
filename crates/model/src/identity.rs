use std::fmt;

/// Who makes a call to the control plane or an agent, as the transport established it.
///
/// Every API call carries one from the start, so that authorisation can be added without touching a handler.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Identity {
    /// Nobody proved who they are: plaintext TCP.
    #[default]
    Anonymous,
    /// A process on this machine, known by the user id that the kernel reports for its end of a Unix socket.
    Local {
        /// Effective user id of the peer when it connected.
        uid: u32,
    },
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Anonymous => f.write_str("anonymous"),
            Self::Local { uid } => write!(f, "local uid {uid}"),
        }
    }
}
