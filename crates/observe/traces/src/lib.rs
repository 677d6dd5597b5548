//! The slowest and the failed traces of the last hour, by service, in bounded memory.
//!
//! [`read_spans`] reads what processes export by OTLP, [`TraceStore`] keeps it, and [`TraceView`] is what a caller may see of it. These know
//! no clock and no I/O: callers pass the time of a clock that only advances. Times within a trace are those of the processes that export it.
//! [`Traces`] takes exports over HTTP.
//!
//! Decision: a trace is kept for as long as it is one of the slowest or the last failed of any of its services. A sample of all traces was
//! rejected: what is looked for is rare. A store of all traces is another program's: processes can export to it instead.

#![warn(missing_docs)]

mod intake;
mod otlp;
mod span;
mod store;
mod view;

pub use intake::Traces;
pub use otlp::read_spans;
pub use span::{SpanKind, TracedSpan};
pub use store::{TraceLimits, TraceStore};
pub use view::TraceView;
