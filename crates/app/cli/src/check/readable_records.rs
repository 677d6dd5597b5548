//! The records that the caller may read: those of all tenants, or of the tenants and services of its roles.

use std::collections::BTreeSet;

use fairmesh_console::{failure::Failure, view_reader::Scope};
use fairmesh_model::{ServiceName, Tenant};
use fairmesh_wire::{
    handshake::Connection,
    v1::{DescribeCallerRequest, describe_caller_response::Role},
};

use super::records;
use crate::findings_report::{Level, Report, listed};

/// How to see the records of the whole mesh.
const REMEDY: &str = "the whole mesh needs a role for all tenants, such as viewer ('fairmesh get roles'); the user of the control \
                      plane has every role on its machine: --control unix:DIR/control.sock, with its --data-dir DIR";

/// Checks the records that the caller may read. What it may not read is noted, and no fault of the mesh.
pub(super) async fn check(connection: &Connection, report: &mut Report) {
    let Err(failure) = records::check(connection, &Scope::All, report).await else { return };
    if !failure.is_refusal() {
        return unread(Level::Warning, &failure, report);
    }
    let mut read = BTreeSet::new();
    for (name, scope) in scopes(connection).await {
        match records::check(connection, &scope, report).await {
            Ok(()) => drop(read.insert(name)),
            Err(refused) if refused.is_refusal() => {}
            Err(failure) => unread(Level::Warning, &failure, report),
        }
    }
    match read.is_empty() {
        true => unread(Level::Note, &failure, report),
        false => report.add(
            "records",
            Level::Note,
            format!(
                "your roles give no more than the records of {}: others were not examined",
                listed(&read)
            ),
            REMEDY,
        ),
    }
}

fn unread(level: Level, failure: &Failure, report: &mut Report) {
    report.add("records", level, format!("the records were not examined: {}", failure.message()), REMEDY);
}

/// The tenants and services of the caller's roles, each with its name. None if the control plane does not tell.
async fn scopes(connection: &Connection) -> Vec<(String, Scope)> {
    let described = connection.admin().describe_caller(DescribeCallerRequest {}).await;
    let roles = described.map(|described| described.into_inner().roles).unwrap_or_default();
    roles.iter().flat_map(scopes_of).collect()
}

fn scopes_of(role: &Role) -> Vec<(String, Scope)> {
    let service = |name: &String| Some((name.clone(), Scope::Service(ServiceName::new(name).ok()?)));
    let tenant =
        |name: &String| Some((format!("tenant {name}"), Scope::Tenant(Tenant::new(name.as_str()).ok()?)));
    match role.services.is_empty() {
        true => role.tenants.iter().filter_map(tenant).collect(),
        false => role.services.iter().filter_map(service).collect(),
    }
}
