//! Data of one response from the control plane.

use std::collections::BTreeMap;

use fairmesh_views::{CallRow, OTHER, counted_once};
use fairmesh_wire::v1;

/// Calls over a time window, from one response.
#[derive(Clone, Debug, Default)]
pub(crate) struct Snapshot {
    pub(crate) rows: Vec<CallRow>,
    pub(crate) denied: Vec<v1::DeniedCalls>,
    /// Number of cores wasted by uneven load, by service. Empty if the user may not read these.
    pub(crate) wasted: BTreeMap<String, f64>,
    /// Endpoints of the inspected service: instance, region, state.
    pub(crate) endpoints: Vec<[String; 3]>,
    /// Time since the start of the history, in milliseconds.
    pub(crate) history_ms: u64,
    pub(crate) not_shown: u32,
    pub(crate) left_out: u64,
}

impl Snapshot {
    pub(crate) fn of(response: v1::ReadCallsResponse) -> Self {
        let other = response.other.map(|row| CallRow { service: OTHER.to_owned(), ..CallRow::of(&row) });
        Self {
            rows: counted_once(&response.rows).into_iter().chain(other).collect(),
            denied: response.denied,
            history_ms: response.history_ms,
            not_shown: response.not_shown,
            left_out: response.left_out,
            ..Self::default()
        }
    }
}
