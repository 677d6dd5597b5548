//! The state machine of one call, without a transport. Every form of Fairmesh runs it around each attempt.
//!
//! A [`Call`] is routed once. Then `pick` chooses an endpoint for each attempt, and `finish` decides what follows the
//! attempt. An attempt counts as outstanding until the call is dropped, or until the response it was handed over to
//! ends. So no exit, not even cancellation, can leak a count.

mod clock;
mod context;
mod end_report;
mod outcome;
mod pick;
mod principal;
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
