//! Calls whose requests are sent from the buffer that they were read into.
//!
//! A fast call is decided, counted and ended by the same [`Call`](crate::call::Call) and
//! [`Attempt`](super::attempt::Attempt) as every call. In any unusual case it continues as a slow call, whose request
//! is parsed: decisions that were made are kept, and nothing is counted twice. `transport/h1/borrowed.rs` sends the
//! bytes.

mod begin;
mod fast_call;
mod slow_call;

pub(crate) use self::begin::try_fast;
pub use self::{fast_call::FastCall, slow_call::SlowCall};
