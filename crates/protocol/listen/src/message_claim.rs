use std::task::Context;

use crate::{Connection, request_memory::Claim};

/// Memory claimed for an incomplete message on a connection that does not carry HTTP requests. Dropping the claim
/// releases the memory.
#[derive(Debug)]
pub struct MessageClaim(Claim);

impl Connection {
    /// Claims memory for an incomplete message of `bytes`. Returns `None` if no memory is available.
    pub fn claim_message(&self, bytes: usize) -> Option<MessageClaim> {
        self.shared().memory().claim_wait(self.holder(), bytes).map(MessageClaim)
    }
}

impl MessageClaim {
    /// Whether the claim was revoked for another connection. If not, the current task is woken once it is.
    pub fn poll_revoked(&self, cx: &Context<'_>) -> bool {
        self.0.poll_revoked(cx)
    }
}
