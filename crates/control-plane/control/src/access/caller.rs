//! Identifies the caller of a call.

use std::sync::Arc;

use axum::http::{Extensions, HeaderMap, header::AUTHORIZATION};
use fairmesh_model::{Identity, Label, MeshRole, SpiffePath};
use fairmesh_rib::access::Caller;
use fairmesh_wire::{
    CallerAgent, ON_BEHALF_OF,
    transport::{BearerToken, WithoutCertificate},
};
use tonic::Status;

use crate::user_tokens::UserTokens;

/// Returns the caller, with the user of the call's token if it has one.
///
/// # Errors
/// The reason why the token is refused.
pub(super) async fn with_user(
    caller: Caller,
    (headers, extensions): (&HeaderMap, &Extensions),
    tokens: &UserTokens,
) -> Result<Caller, Status> {
    let is_secret = caller.identity != Identity::Anonymous || without_certificate(extensions).is_some();
    let mut given = headers.get_all(AUTHORIZATION).iter().filter_map(BearerToken::in_header);
    match (given.next(), given.next()) {
        (None, _) => Ok(caller),
        (Some(token), None) => {
            let user = tokens.user(is_secret, token).await?;
            Ok(Caller { user: Some(user), ..caller })
        }
        (Some(_), Some(_)) => Err(Status::unauthenticated("the call has two tokens; send one")),
    }
}

/// Set if the connection uses TLS but the client has presented no certificate.
pub(super) fn without_certificate(extensions: &Extensions) -> Option<WithoutCertificate> {
    extensions.get().copied()
}

/// Maximum length of a program's name in the log of writes, in bytes. The process that forwards a call
/// chooses the name.
const MAX_PROGRAM: usize = 256;

/// Returns the caller's name for the log of writes.
pub(super) fn author(caller: &Caller, headers: &HeaderMap) -> Arc<str> {
    let mut who = caller.to_string();
    let program = headers.get(ON_BEHALF_OF).and_then(|value| value.to_str().ok());
    if let Some(program) = program.filter(|program| program.len() <= MAX_PROGRAM) {
        who.extend([" for ", program]);
    }
    who.into()
}

/// Adds the caller to the extensions for handlers. If the caller is an agent, also adds the agent, which registers
/// endpoints.
pub(super) fn describe(caller: Caller, extensions: &mut Extensions) {
    extensions.insert(caller.identity.clone());
    if let Some(agent) = agent(&caller.identity) {
        extensions.insert(CallerAgent(agent.clone()));
    }
    extensions.insert(caller);
}

fn agent(identity: &Identity) -> Option<&Label> {
    let Identity::Spiffe(id) = identity else { return None };
    match &id.path {
        SpiffePath::Mesh(MeshRole::Agent, name) => Some(name),
        SpiffePath::Mesh(..) | SpiffePath::Service(_) => None,
    }
}
