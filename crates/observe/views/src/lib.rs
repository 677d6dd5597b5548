//! What operators see of the mesh, as plain values: records grouped by service, the state of endpoints as callers see
//! it, calls, where calls reported by both sides are counted once, and spans of a trace in the order of a waterfall.
//!
//! Commands and the web page of the control plane both use this crate, so that they show the same numbers and words.
//! The crate has no connections and knows no processes: its users read the records.
//!
//! A view shows a single moment. Views that follow changes of the mesh were rejected: a page or table that mixes
//! several moments contradicts itself.

mod call_rows;
mod endpoint_state;
mod hypothetical_call;
mod view;
mod waterfall;

pub use call_rows::{CallRow, CallSum, OTHER, UNKNOWN, counted_once};
pub use endpoint_state::{DisplayedState, REFUSED, effect, lost_cause, lost_words, partly_carried, states};
pub use hypothetical_call::HypotheticalCall;
pub use view::{
    ALL_TENANTS, At, Scope, ServiceView, StoredRecord, View, age_of, every_kind, instant, table_age,
};
pub use waterfall::waterfall;
