use std::{collections::BTreeMap, sync::Arc};

use fairmesh_model::{AuthorizationMode, DefaultAuthorization, MtlsMode, RecordKind, ServiceName};
use fairmesh_views::{ServiceView, View};
use fairmesh_wire::v1;
use serde_json::{Value, json};
use tonic::Status;

use crate::{
    command_queries::Commands,
    event_delta::{Shown, text},
    service::default_name,
};

/// Kinds of records that determine what is protected.
pub(crate) const KINDS: &[RecordKind] =
    &[RecordKind::Service, RecordKind::Policy, RecordKind::Endpoint, RecordKind::Authorization];
/// Maximum number of plaintext callers that are listed per service.
const MAX_CALLERS: usize = 20;

/// Shows what services leave unprotected, like `fairmesh security check` and `fairmesh identity plaintext`. Protected
/// services have no row.
pub(crate) async fn protection(view: &View, commands: &Commands) -> Result<Shown, Status> {
    let default = view.authorization.unwrap_or_default();
    let mut rows = BTreeMap::new();
    for (name, one) in &view.services {
        let policy = one.effective_policy();
        let is_permissive = policy.mtls == MtlsMode::Permissive;
        let plaintext = one.endpoints.iter().filter(|endpoint| !endpoint.value.mtls).count();
        let rules = match &policy.authorization {
            Some(rules) if rules.mode == AuthorizationMode::Audit => "audited",
            Some(_) => "enforced",
            None => "none",
        };
        let is_refused = rules == "none" && default == DefaultAuthorization::Deny;
        let is_open = one.service.is_some() && rules != "enforced" && !is_refused;
        if !is_open && (!view.has_trust_domain || plaintext == 0 && !is_permissive) {
            continue;
        }
        let callers = if is_permissive { callers(name, commands).await? } else { Vec::new() };
        rows.insert(name.to_string(), Arc::from(text(&row(one, (is_permissive, plaintext, rules), callers))));
    }
    let head = json!({
        "hasTrustDomain": view.has_trust_domain,
        "services": view.services.len(),
        "default": default_name(default),
    });
    Ok(Shown::with_rows(&head, rows))
}

fn row(
    one: &ServiceView,
    (is_permissive, plaintext, rules): (bool, usize, &str),
    mut callers: Vec<Value>,
) -> Value {
    let more = callers.len().saturating_sub(MAX_CALLERS);
    callers.truncate(MAX_CALLERS);
    json!({
        "permissive": is_permissive,
        "endpoints": one.endpoints.len(),
        "plaintext": plaintext,
        "rules": rules,
        "callers": callers,
        "moreCallers": more,
    })
}

/// Returns the plaintext callers of a service that permits plaintext.
async fn callers(name: &ServiceName, commands: &Commands) -> Result<Vec<Value>, Status> {
    let request = v1::ReadPlaintextCallersRequest { service: name.to_string() };
    let servers = commands.registry().read_plaintext_callers(request).await?.into_inner().servers;
    let mut by_address = BTreeMap::<String, (u64, u32)>::new();
    for caller in servers.into_iter().flat_map(|server| server.callers) {
        let entry = by_address.entry(caller.address).or_insert((0, u32::MAX));
        *entry = (entry.0.saturating_add(caller.connections), entry.1.min(caller.seconds_ago));
    }
    let caller = |(address, (connections, seconds_ago)): (String, (u64, u32))| json!({ "address": address, "connections": connections, "agoMs": u64::from(seconds_ago) * 1_000 });
    Ok(by_address.into_iter().map(caller).collect())
}
