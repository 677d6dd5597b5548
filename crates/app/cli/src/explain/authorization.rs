//! Whether a caller may make the call, as the server decides.

use fairmesh_console::{
    failure::Failure,
    rib_reader,
    view::{Scope, View},
};
use fairmesh_model::{CallerId, Invalid, RecordKind, ServiceName, SpiffeId, SpiffePath, TrustDomain};
use fairmesh_router::{AuthorizationRequest, AuthorizationTable, DecisionReason};
use fairmesh_wire::handshake::Connection;
use serde_json::{Value, json};

use crate::identity::describe_revocations_of;

/// A caller as an argument.
#[derive(Clone, Debug)]
pub(super) enum CallerArgument {
    /// Within the trust domain of the mesh.
    Path(SpiffePath),
    /// Any.
    Id(SpiffeId),
}

/// Parses a caller.
pub(super) fn caller(text: &str) -> Result<CallerArgument, Invalid> {
    match text.starts_with("spiffe://") {
        true => text.parse().map(CallerArgument::Id),
        false => text.parse().map(CallerArgument::Path),
    }
}

/// The decision of a server.
pub(super) struct Decided {
    /// Whether the call is made.
    pub(super) is_made: bool,
    pub(super) words: String,
    pub(super) json: Value,
}

/// Decides on a call of a service, its method and its path.
pub(super) async fn decide(
    connection: &Connection,
    caller: &CallerArgument,
    (service, method, path): (&ServiceName, &str, &str),
) -> Result<Decided, Failure> {
    let known = rib_reader::identity_of_service(connection, service).await?.map(|id| id.domain);
    let (caller, own) = match caller {
        CallerArgument::Id(id) if known.as_ref().is_some_and(|own| *own != id.domain) => {
            (CallerId::federated(id.clone()), None)
        }
        CallerArgument::Id(id) => (CallerId::new(id.clone()), Some(id.path.clone())),
        CallerArgument::Path(named) => {
            let domain = known.map_or_else(|| TrustDomain::new("mesh.local"), Ok)?;
            (CallerId::new(named.clone().within(&domain)), Some(named.clone()))
        }
    };
    let view = View::read(connection, &Scope::Service(service.clone()), &[RecordKind::Policy]).await?;
    let policy = view.services.get(service).map(|one| one.effective_policy()).unwrap_or_default();
    // Without a recorded checker, servers admit the probes of all agents.
    let checkers = Some(rib_reader::checkers(connection).await).filter(|known| !known.is_empty());
    let table = AuthorizationTable::compile(&policy, view.authorization.unwrap_or_default(), checkers);
    let decision = table.decide(&AuthorizationRequest { caller: Some(&caller), method, path });
    let rule = match decision.reason {
        DecisionReason::Rule(name) => Some(name.to_string()),
        DecisionReason::NoRule
        | DecisionReason::HealthCheck
        | DecisionReason::OtherDomain
        | DecisionReason::Default => None,
    };
    let (is_revoked, revoked) = revoked(connection, own.as_ref()).await;
    let mut words = format!("{} calls {service}: {decision}", caller.as_str());
    if let Some(revoked) = &revoked {
        words += &format!("; revoked, and refused whatever the policy says: {revoked}");
    }
    Ok(Decided {
        is_made: decision.permits() && !is_revoked,
        words,
        json: json!({
            "caller": caller.as_str(), "allowed": decision.is_allowed, "audit": decision.is_audit, "rule": rule,
            "reason": decision.to_string(), "revoked": revoked,
        }),
    })
}

/// Whether an identity of the mesh is revoked as a whole, and what of it is, for people.
async fn revoked(connection: &Connection, path: Option<&SpiffePath>) -> (bool, Option<String>) {
    let Some(path) = path else { return (false, None) };
    let revocations = rib_reader::revocations(connection).await;
    (revocations.revokes_identity(path), describe_revocations_of(&revocations, path))
}
