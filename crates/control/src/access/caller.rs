//! Who makes a call.

use axum::http::{Extensions, HeaderMap};
use fairmesh_model::{Identity, Label, MeshRole, SpiffePath};
use fairmesh_rib::access::Caller;
use fairmesh_wire::{CallerAgent, ON_BEHALF_OF};

/// The caller by its connection.
pub(super) fn of_connection(headers: &HeaderMap, extensions: &Extensions) -> Caller {
    let identity = extensions.get::<Identity>().cloned().unwrap_or_default();
    Caller { identity, is_forwarded: headers.contains_key(ON_BEHALF_OF), user: None }
}

/// Tells handlers the identity of the caller, and the agent that registers its endpoints.
pub(super) fn describe(caller: &Caller, extensions: &mut Extensions) {
    extensions.insert(caller.identity.clone());
    if let Some(agent) = agent(&caller.identity) {
        extensions.insert(CallerAgent(agent.clone()));
    }
}

fn agent(identity: &Identity) -> Option<&Label> {
    let Identity::Spiffe(id) = identity else { return None };
    match &id.path {
        SpiffePath::Mesh(MeshRole::Agent, name) => Some(name),
        SpiffePath::Mesh(..) | SpiffePath::Service(_) => None,
    }
}
