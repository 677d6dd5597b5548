//! Explains the decision of a hypothetical caller, from records and with the code of the library.
//!
//! `fairmesh explain` and the control plane's page *why* use this crate, so that they agree with each other and with
//! programs. Explaining at an agent was rejected: an agent could only answer for its own region, and would have to run
//! there.

mod caller_table;
mod document;
mod undeclared_backend;

use std::collections::BTreeSet;

use fairmesh_calls::observe::{self, CallExplanation, Question};
use fairmesh_model::{Protocol, ServiceName};
use fairmesh_router::{PickParams, RequestView};
use fairmesh_views::{HypotheticalCall, View};

pub use caller_table::{CallerTable, Undeclared};
pub use document::document;
pub use undeclared_backend::UndeclaredBackend;

/// A decision, and the caller's view of the call's last service.
#[derive(Debug)]
pub struct Explained {
    /// The decision.
    pub report: CallExplanation,
    /// The call's last service as seen by the caller.
    pub last: CallerTable,
    /// The backend that a route chose, if it is not declared: the call fails there.
    pub undeclared_backend: Option<UndeclaredBackend>,
}

/// Decides about `call` from the records of its service. If a route sends the call to [another
/// service](CallExplanation::next_service), that service must still decide: see [`go_on`].
///
/// # Errors
/// [`Undeclared`] if the service is not declared.
pub fn begin(call: &HypotheticalCall, records: &View) -> Result<Explained, Undeclared> {
    let table = CallerTable::compile(records, &call.service, call)?;
    let mut report = CallExplanation::default();
    decide(call, &table, &mut report);
    Ok(Explained { report, last: table, undeclared_backend: None })
}

/// Continues the decision with the records of the service to which the first service's route sends the call. The
/// decision ends at the route if that service is not declared.
pub fn go_on(call: &HypotheticalCall, begun: Explained, (next, records): (&ServiceName, &View)) -> Explained {
    let Explained { mut report, last, .. } = begun;
    match CallerTable::compile(records, next, call) {
        Ok(table) => {
            decide(call, &table, &mut report);
            Explained { report, last: table, undeclared_backend: None }
        }
        Err(Undeclared(backend)) => {
            let undeclared = UndeclaredBackend { service: call.service.clone(), backend };
            Explained { report, last, undeclared_backend: Some(undeclared) }
        }
    }
}

/// Returns the backends whose calls a route of the service redistributes while they have no endpoints.
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

/// Whether a service has endpoints for the caller. An undeclared service has none.
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
