//! The records that the caller may read: those of all tenants, or of the tenants and services of its roles.

use std::collections::{BTreeMap, BTreeSet};

use fairmesh_console::{
    failure::Failure,
    view_reader::{ReadView as _, Scope, View, every_kind},
};
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
    let failure = match View::read_silently(connection, &Scope::All, &every_kind()).await {
        Ok(view) => return records::check(connection, (&view, &[Scope::All]), report).await,
        Err(failure) if failure.is_refusal() => failure,
        Err(failure) => return unread(Level::Warning, &failure, report),
    };
    let (mut view, mut names, mut scopes) = (None::<View>, BTreeSet::new(), Vec::new());
    for (name, scope) in scopes_of_caller(connection).await {
        match View::read_silently(connection, &scope, &every_kind()).await {
            Ok(read) => {
                names.insert(name);
                scopes.push(scope);
                // The topology is the same in all views.
                match &mut view {
                    Some(view) => {
                        view.services.extend(read.services);
                        view.unreadable.extend(read.unreadable);
                    }
                    None => view = Some(read),
                }
            }
            Err(refused) if refused.is_refusal() => {}
            Err(failure) => unread(Level::Warning, &failure, report),
        }
    }
    let Some(view) = view else { return unread(Level::Note, &failure, report) };
    records::check(connection, (&view, &scopes), report).await;
    report.add(
        "records",
        Level::Note,
        format!("your roles give no more than the records of {}: others were not examined", listed(&names)),
        REMEDY,
    );
}

fn unread(level: Level, failure: &Failure, report: &mut Report) {
    report.add("records", level, format!("the records were not examined: {}", failure.message()), REMEDY);
}

/// The tenants and services of the caller's roles by name, each once. None if the control plane does not tell.
async fn scopes_of_caller(connection: &Connection) -> BTreeMap<String, Scope> {
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
