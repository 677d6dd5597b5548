//! The state machine of one call, without a transport: every form of Fairmesh runs it around each attempt.
//!
//! A [`Call`] is routed once; then `pick` chooses an endpoint for each attempt and `finish` decides what follows it. An
//! attempt counts as outstanding until the call is dropped or the response that it was handed over
//! to ends, so that no exit, cancellation included, can leak a count.

mod clock;
mod context;
mod outcome;
mod pick;
mod principal;
mod report;
mod retry;
mod route;
mod state;
mod timeouts;

pub use clock::{Clock, nanos};
pub use context::{CallContext, CallStart, DecisionContext};
pub use outcome::{AttemptOutcome, RetryDecision};
pub use pick::Pick;
pub use principal::Principal;
pub use route::Unresolved;
pub use state::{Call, SnapshotGuard};
