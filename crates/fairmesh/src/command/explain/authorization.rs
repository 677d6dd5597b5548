//! Whether a caller may make the call, as the server decides.

use fairmesh_model::{CallerId, Invalid, ServiceName, SpiffeId, SpiffePath, TrustDomain};
use fairmesh_router::{AuthorizationRequest, AuthorizationTable, DecisionReason};
use fairmesh_wire::handshake::Connection;
use serde_json::{Value, json};

use crate::{
    failure::Failure,
    rib_reader,
    view::{Scope, View},
};

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
    let caller = match caller {
        CallerArgument::Id(id) if known.as_ref().is_some_and(|own| *own != id.domain) => {
            CallerId::federated(id.clone())
        }
        CallerArgument::Id(id) => CallerId::new(id.clone()),
        CallerArgument::Path(named) => {
            let domain = known.map_or_else(|| TrustDomain::new("mesh.local"), Ok)?;
            CallerId::new(named.clone().within(&domain))
        }
    };
    let view = View::read(connection, &Scope::Service(service.clone()), &["policies"]).await?;
    let policy = view.services.get(service).map(|one| one.effective_policy()).unwrap_or_default();
    let table = AuthorizationTable::compile(&policy, view.authorization.unwrap_or_default());
    let decision = table.decide(&AuthorizationRequest { caller: Some(&caller), method, path });
    let rule = match decision.reason {
        DecisionReason::Rule(name) => Some(name.to_string()),
        DecisionReason::NoRule
        | DecisionReason::HealthCheck
        | DecisionReason::OtherDomain
        | DecisionReason::Default => None,
    };
    Ok(Decided {
        is_made: decision.permits(),
        words: format!("{} calls {service}: {decision}", caller.as_str()),
        json: json!({
            "caller": caller.as_str(), "allowed": decision.is_allowed, "audit": decision.is_audit, "rule": rule,
            "reason": decision.to_string(),
        }),
    })
}
