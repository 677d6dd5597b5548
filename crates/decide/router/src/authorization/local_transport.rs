//! Which calls within a machine need no server to judge them, so that the kernel may carry them.

use fairmesh_model::{CallerId, LocalTransport};

use super::AuthorizationTable;

/// Why the calls of a caller within the machine need mutual TLS, and a server that judges each of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NeedsSidecar {
    /// The policy forbids the kernel.
    #[error("the policy of the service says 'localTransport: sidecar'")]
    Forbidden,
    /// The caller proves no identity.
    #[error("the caller has no identity")]
    NoIdentity,
    /// Requests may have tokens, which the server reads.
    #[error("the service accepts tokens of end users, which its server reads")]
    ReadsTokens,
    /// Not every request of the caller is allowed. Some may be: then the server judges each one.
    #[error("the rules do not allow every request of the caller")]
    NotAllowed,
}

impl AuthorizationTable {
    /// Whether every request of a caller is allowed, whatever it contains, so that plaintext requests in its name need no
    /// judgement of their own. The requests of other callers are judged one by one, by [`decide`](Self::decide). What
    /// only the mode `audit` lets through is not allowed: the server would not see it, and so not log it.
    ///
    /// # Errors
    /// Why the server has to judge each request.
    pub fn decide_local(&self, caller: Option<&CallerId>) -> Result<(), NeedsSidecar> {
        if self.local_transport != LocalTransport::Kernel {
            return Err(NeedsSidecar::Forbidden);
        }
        if caller.is_none() {
            return Err(NeedsSidecar::NoIdentity);
        }
        if self.policy.as_ref().is_some_and(|policy| !policy.tokens.is_empty()) {
            return Err(NeedsSidecar::ReadsTokens);
        }
        match self.decide_connection(caller).is_allowed {
            true => Ok(()),
            false => Err(NeedsSidecar::NotAllowed),
        }
    }
}
