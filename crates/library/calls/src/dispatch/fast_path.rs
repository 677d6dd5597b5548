//! Calls whose requests are sent from the buffer that they were read into.
//!
//! The same [`Call`](crate::call::Call) and [`Attempt`](super::attempt::Attempt) as for every call decide, count and
//! end a fast call. In any unusual case it continues as a slow call, whose request is parsed: decisions already made
//! are kept, and nothing is counted twice. `transport/h1/borrowed.rs` sends the bytes.

mod fast_call;
mod slow_call;
mod try_fast;

pub(crate) use self::try_fast::try_fast;
pub use self::{fast_call::FastCall, slow_call::SlowCall};
