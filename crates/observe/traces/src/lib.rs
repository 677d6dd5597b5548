//! Keeps the slowest and the failed traces of the last hour for each service, in bounded memory.
//!
//! [`read_spans`] reads spans exported with OTLP, [`TraceStore`] keeps them, and [`TraceView`] is what a caller may
//! see of the store. These three have no clock and no I/O: callers pass the time of a clock that only advances. Times
//! within a trace are those of the exporting processes. [`Traces`] receives exports over HTTP, from
//! a [`SpanSender`] that its owner authenticates.
//!
//! Decision: a trace is kept as long as it is among the slowest or the last failed traces of any of its services. A
//! sample of all traces was rejected, because operators look for rare cases. A store of all traces is left to other
//! software, to which processes can export instead.

#![warn(missing_docs)]

mod intake;
mod link;
mod otlp;
mod requests;
mod sender;
mod sender_rooms;
mod span;
mod store;
mod view;

pub use intake::Traces;
pub use link::{InvalidTraceLink, TraceLink};
pub use otlp::read_spans;
pub use requests::read_traces;
pub use sender::{SpanRights, SpanSender};
pub use span::{SpanKind, TracedSpan};
pub use store::{TraceLimits, TraceStore};
pub use view::TraceView;
