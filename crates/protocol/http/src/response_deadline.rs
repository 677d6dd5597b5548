//! The deadline for sending a response, by which a response ends whose client does not read.

use tokio::time::Instant;

/// The time by which a response must be sent completely; an extension of responses, set only if the call has a
/// deadline. A connection that cannot send the response by then, because its peer does not read, ends the response
/// itself: the body is not polled meanwhile, so no timer inside the body could fire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseDeadline(pub Instant);
