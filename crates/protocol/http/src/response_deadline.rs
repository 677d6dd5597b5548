//! The end of a response whose client does not read.

use tokio::time::Instant;

/// When a response has to be sent completely. A connection that cannot send it by then, because its peer does not take
/// what was sent, ends it: the body is not polled meanwhile, so that no timer inside it could. An extension of
/// responses, set only where a call has a deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseDeadline(pub Instant);
