//! What operators see of the mesh, as values: records grouped by service, the state of endpoints as callers see it, and calls that
//! both sides count, counted once.
//!
//! Commands and the web page of the control plane show the same numbers and words, since both get them here. This crate knows no
//! connection and no process: who reads the records is a matter of its users.
//!
//! Views are values of one moment. Views that follow the mesh were rejected: a page or a table of several moments at once
//! contradicts itself.

mod call_rows;
mod endpoint_state;
mod hypothetical_call;
mod view;

pub use call_rows::{CallRow, CallSum, OTHER, UNKNOWN, counted_once};
pub use endpoint_state::{DisplayedState, REFUSED, effect, lost_words, states};
pub use hypothetical_call::HypotheticalCall;
pub use view::{
    ALL_TENANTS, At, Scope, ServiceView, StoredRecord, View, age_of, every_kind, instant, table_age,
};
