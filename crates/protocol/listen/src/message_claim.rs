use std::task::Context;

use crate::{Connection, memory::Claim};

/// Memory of an incomplete message on a connection that carries no requests of HTTP, released when this is dropped.
#[derive(Debug)]
pub struct MessageClaim(Claim);

impl Connection {
    /// Claims memory for an incomplete message of `bytes`; `None` if none is available.
    pub fn claim_message(&self, bytes: usize) -> Option<MessageClaim> {
        self.shared().memory().claim_wait(self.holder(), bytes).map(MessageClaim)
    }
}

impl MessageClaim {
    /// Whether it was revoked for another connection; otherwise the current task is woken when it is.
    pub fn poll_revoked(&self, cx: &Context<'_>) -> bool {
        self.0.poll_revoked(cx)
    }
}
