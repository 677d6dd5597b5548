//! The decision of a caller that does not exist: from records, by the code of the library, with its reasons.
//!
//! `fairmesh explain` and the page *why* of the control plane decide here, so that they agree with each other and with programs.
//! Explaining at an agent was rejected: it would answer for its own region alone, and need a program there.

mod caller_table;
mod document;

use std::collections::BTreeSet;

use fairmesh_calls::observe::{self, CallExplanation, Question};
use fairmesh_model::{Protocol, ServiceName};
use fairmesh_router::{PickParams, RequestView};
use fairmesh_views::{HypotheticalCall, View};

pub use caller_table::{CallerTable, Undeclared};
pub use document::document;

/// A decision, and what is known of the last service of the call.
#[derive(Debug)]
pub struct Explained {
    /// The decision.
    pub report: CallExplanation,
    /// The last service as the caller has it.
    pub last: CallerTable,
}

/// Decides about `call` by the records of its service. If a route sends it to [another one](CallExplanation::next_service), that
/// has yet to decide: see [`go_on`].
///
/// # Errors
/// [`Undeclared`] if the service is not declared.
pub fn begin(call: &HypotheticalCall, records: &View) -> Result<Explained, Undeclared> {
    let table = CallerTable::compile(records, &call.service, call)?;
    let mut report = CallExplanation::default();
    decide(call, &table, &mut report);
    Ok(Explained { report, last: table })
}

/// Decides further by the records of the service to which the route of the first one sends the call.
///
/// # Errors
/// [`Undeclared`] if that service is not declared.
pub fn go_on(
    call: &HypotheticalCall,
    begun: Explained,
    (next, records): (&ServiceName, &View),
) -> Result<Explained, Undeclared> {
    let table = CallerTable::compile(records, next, call)?;
    let Explained { mut report, .. } = begun;
    decide(call, &table, &mut report);
    Ok(Explained { report, last: table })
}

/// The backends whose calls a route of the service redistributes while they have no endpoints.
///
/// # Errors
/// [`Undeclared`] if the service is not declared.
pub fn redistributed_backends(
    call: &HypotheticalCall,
    records: &View,
) -> Result<BTreeSet<ServiceName>, Undeclared> {
    let table = CallerTable::compile(records, &call.service, call)?.table;
    Ok(table.redistributed_backends().cloned().collect())
}

/// Whether a service has endpoints for the caller. One that is not declared has none.
pub fn has_endpoints(call: &HypotheticalCall, (name, records): (&ServiceName, &View)) -> bool {
    CallerTable::compile(records, name, call).is_ok_and(|of| !of.table.is_empty())
}

fn decide(call: &HypotheticalCall, of: &CallerTable, report: &mut CallExplanation) {
    let grpc = of.table.protocol() == Protocol::Grpc;
    let request = RequestView {
        host: &call.host,
        path: &call.path,
        method: if grpc { "POST" } else { &call.method },
        headers: &call.headers,
        grpc,
    };
    let ask =
        PickParams { key: call.key, role: call.role.as_ref(), call_seed: call.seed, ..PickParams::default() };
    let question = Question { request, ask, now: 0, seed: call.seed, empty: &call.empty_backends };
    observe::explain(report, &of.table, of.revision, &question);
}
