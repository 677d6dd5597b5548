//! Whether a caller is authorized, as the server decides.

use std::{collections::BTreeMap, net::IpAddr, time::Duration};

use fairmesh_console::{
    failure::Failure,
    rib_reader,
    view_reader::{ReadView, Scope, View},
};
use fairmesh_model::{CallerId, Invalid, RecordKind, ServiceName, SpiffeId, SpiffePath, TrustDomain};
use fairmesh_router::{
    AuthorizationRequest, AuthorizationTable, ClaimValue, DecisionReason, Headers, RequestAttributes,
    UserToken,
};
use fairmesh_wire::handshake::Connection;
use serde_json::{Value, json};

use crate::identity::describe_revocations_of;

/// What `explain` adds about a call that the rules allow, and a server that judges only its connection refuses.
const REFUSED_BY_REGISTER: &str = "; a server behind 'fairmesh register' refuses it: there, only rules without methods, \
    paths, sourceAddresses and when allow calls, and deny rules refuse all of them";

/// A caller given as an argument.
#[derive(Clone, Debug)]
pub(super) enum CallerArgument {
    /// An identity in the trust domain of the mesh.
    Path(SpiffePath),
    /// A SPIFFE ID of any trust domain.
    Id(SpiffeId),
}

/// Parses a caller.
pub(super) fn caller(text: &str) -> Result<CallerArgument, Invalid> {
    match text.starts_with("spiffe://") {
        true => text.parse().map(CallerArgument::Id),
        false => text.parse().map(CallerArgument::Path),
    }
}

/// Attributes of the call that rule conditions compare.
pub(super) struct Brought<'a> {
    source: Option<IpAddr>,
    headers: &'a [(String, String)],
    token: Option<UserToken>,
}

impl<'a> Brought<'a> {
    /// Attributes of a call with these headers, and with an accepted token that has these claims.
    pub(super) fn new(
        source: Option<IpAddr>,
        headers: &'a [(String, String)],
        claims: &[(String, String)],
    ) -> Self {
        let mut read = BTreeMap::<String, Vec<String>>::new();
        for (name, value) in claims {
            read.entry(name.clone()).or_default().push(value.clone());
        }
        let token = (!read.is_empty()).then(|| UserToken {
            issuer: String::new(),
            audiences: Vec::new(),
            valid_for: Duration::ZERO,
            claims: read.into_iter().map(|(name, values)| (name, ClaimValue::Texts(values))).collect(),
        });
        Self { source, headers, token }
    }

    fn attributes(&self) -> RequestAttributes<'_> {
        RequestAttributes { source: self.source, token: self.token.as_ref(), headers: self }
    }
}

impl Headers for Brought<'_> {
    fn get(&self, name: &str) -> Option<&[u8]> {
        Headers::get(self.headers, name)
    }

    fn any(&self, name: &str, sees: &mut dyn FnMut(&[u8]) -> bool) -> bool {
        self.headers.iter().filter(|(one, _)| one == name).any(|(_, value)| sees(value.as_bytes()))
    }
}

/// Parses a claim as `NAME=VALUE`.
pub(super) fn claim(text: &str) -> Result<(String, String), Invalid> {
    let pair = text.split_once('=').filter(|(name, _)| !name.is_empty());
    let hint = "write NAME=VALUE, as groups=members";
    let (name, value) = pair.ok_or_else(|| Invalid::new("", format!("'{text}' is no claim"), hint))?;
    Ok((name.to_owned(), value.to_owned()))
}

/// The authorization decision of a server.
pub(super) struct Decided {
    /// Whether the call is made: the decision permits it, and the caller's identity is not revoked.
    pub(super) is_made: bool,
    pub(super) words: String,
    pub(super) json: Value,
}

/// Decides whether a service accepts a call with its method and path.
pub(super) async fn decide(
    connection: &Connection,
    caller: &CallerArgument,
    (service, method, path): (&ServiceName, &str, &str),
    brought: &Brought<'_>,
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
    let view =
        View::read_complete(connection, &Scope::Service(service.clone()), &[RecordKind::Policy]).await?;
    let policy = view.services.get(service).map(|one| one.effective_policy()).unwrap_or_default();
    // If no checker is recorded, servers accept health checks from all agents.
    let checkers = Some(rib_reader::checkers(connection).await).filter(|known| !known.is_empty());
    let table = AuthorizationTable::compile(&policy, view.authorization.unwrap_or_default(), checkers);
    let attributes = brought.attributes();
    let decision = table.decide(&AuthorizationRequest { caller: Some(&caller), method, path, attributes });
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
    let by_register = table.decide_connection(Some(&caller)).permits();
    if decision.permits() && !by_register {
        words += REFUSED_BY_REGISTER;
    }
    let local = table.decide_local(Some(&caller)).err().map(|reason| reason.to_string());
    if decision.permits() && !is_revoked {
        words += &within_machine(local.as_deref());
    }
    Ok(Decided {
        is_made: decision.permits() && !is_revoked,
        words,
        json: json!({
            "caller": caller.as_str(), "allowed": decision.is_allowed, "audit": decision.is_audit, "rule": rule,
            "reason": decision.to_string(), "revoked": revoked,
            "localTransport": if local.is_none() && !is_revoked { "kernel" } else { "sidecar" },
            "needsSidecar": local, "allowedByRegister": by_register && !is_revoked,
        }),
    })
}

/// How a permitted call gets to a server of the same machine; `needs_sidecar` says why the kernel does not send it.
fn within_machine(needs_sidecar: Option<&str>) -> String {
    match needs_sidecar {
        None => "; within a machine, the kernel may send it".to_owned(),
        Some(reason) => format!("; within a machine by mutual TLS too: {reason}"),
    }
}

/// Whether an identity of the mesh is revoked completely, and its revocations as text.
async fn revoked(connection: &Connection, path: Option<&SpiffePath>) -> (bool, Option<String>) {
    let Some(path) = path else { return (false, None) };
    let revocations = rib_reader::revocations(connection).await;
    (revocations.revokes_identity(path), describe_revocations_of(&revocations, path))
}
