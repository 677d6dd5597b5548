//! What happens around each try of a call, without a transport: every form of Fairmesh does it alike.
//!
//! A [`Resolver`] keeps one [`Subscription`] a service: records come in, a compiled snapshot is published. A [`Call`] is
//! routed once; then `decide` chooses an endpoint for each try and `finish` says what comes after it. A try counts as
//! outstanding until the call is dropped or the answer that it was [handed over](Call::hand_over) to ends, so that no way
//! out, cancellation included, can leak a count.

mod budget;
mod call;
mod clock;
mod context;
mod resolver;
mod view;

pub use budget::Budget;
pub use call::{Call, Chosen, Ending, FIRST_CONTACT, Moment, Next, Sight, Start, Undecided, no_view};
pub use clock::{Clock, nanos};
pub use context::CallContext;
pub use resolver::{Resolver, ResolverConfig, UNUSED};
pub use view::{Lane, Ready, Subscription, View};
