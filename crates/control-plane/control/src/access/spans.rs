//! Authenticates the senders of spans, and decides which services they may name. Connections are as those of the pages:
//! in plaintext, senders have no identity.

use std::sync::Arc;

use axum::{
    Router,
    extract::{Request, State},
    http::{Extensions, HeaderMap, StatusCode},
    middleware::{Next, from_fn_with_state},
    response::{IntoResponse as _, Response},
};
use fairmesh_model::{
    ServiceName,
    access::{Grants, Reach},
};
use fairmesh_rib::access::{AccessControl, Caller};
use fairmesh_traces::{SpanRights, SpanSender};
use tonic::{Code, Status};

use super::{Access, caller};

/// Wraps the intake of spans in the authentication of senders.
pub(crate) fn guard_spans(intake: Router, access: Access) -> Router {
    intake.layer(from_fn_with_state(access, identify))
}

/// Adds the sender to the extensions of a request, before its body is read.
async fn identify(State(access): State<Access>, mut request: Request, next: Next) -> Response {
    match sender(&access, (request.headers(), request.extensions())).await {
        Ok(sender) => {
            request.extensions_mut().insert(sender);
            next.run(request).await
        }
        Err(refusal) => {
            let who = Caller::of_connection(request.headers(), request.extensions());
            access.audit.note_denied(&who.to_string(), request.uri().path(), refusal.message());
            let status = match refusal.code() {
                Code::Unauthenticated => StatusCode::UNAUTHORIZED,
                _ => StatusCode::FORBIDDEN,
            };
            (status, format!("{}\n", refusal.message())).into_response()
        }
    }
}

/// Authenticates the sender of a request, by its certificate or the token of a user.
///
/// # Errors
/// The token is refused, or the sender may act for no service.
async fn sender(
    access: &Access,
    (headers, extensions): (&HeaderMap, &Extensions),
) -> Result<SpanSender, Status> {
    if !access.control.is_strict() {
        return Ok(SpanSender::anyone());
    }
    let caller = Caller::of_connection(headers, extensions);
    let caller = caller::with_user(caller, (headers, extensions), &access.tokens).await?;
    let grants = access.control.grants(&caller);
    if grants == Grants::default() {
        return Err(Status::permission_denied(format!(
            "{caller} may send no spans: send them over https, with a certificate of the mesh or the token of a user with a role"
        )));
    }
    let control = access.control.clone();
    Ok(SpanSender::new(caller.to_string(), Arc::new(SenderGrants { control, grants })))
}

/// Judges the names in spans as [`SpanRights`].
struct SenderGrants {
    control: AccessControl,
    grants: Grants,
}

impl SpanRights for SenderGrants {
    fn may_be(&self, process: &str) -> bool {
        match ServiceName::new(process) {
            Ok(service) => self.grants.may_serve(&service, None),
            // Names like a service's, in a form that no service has.
            Err(_) if process.contains('/') => self.grants.admin,
            // Processes of the mesh that are no service, such as a proxy of many programs: only they, agents, and
            // admins. Registrars are none of them.
            Err(_) => {
                let agent = self.grants.machine.as_ref().and_then(|machine| machine.agent.as_ref());
                self.grants.admin || self.grants.serve != Reach::Nothing || agent.is_some()
            }
        }
    }

    fn may_know(&self, service: &str) -> bool {
        match ServiceName::new(service) {
            Ok(service) => self.control.may_view(&self.grants, &service),
            Err(_) => self.grants.admin || !service.contains('/'),
        }
    }
}

#[cfg(test)]
mod tests {
    use fairmesh_model::{
        Label,
        access::{Machine, Reach},
    };
    use fairmesh_rib::Node;

    use super::*;

    #[test]
    fn only_processes_of_the_mesh_state_spans_under_names_of_no_service() {
        let process = |agent: Option<&str>| {
            let agent = agent.map(|name| Label::new(name).unwrap());
            let machine = Some(Machine { agent, region: None, is_agent: false });
            Grants { machine, ..Grants::default() }
        };
        let service = ServiceName::new("shop/web").unwrap();
        let reader = Grants { view: Reach::Everything, ..Grants::default() };
        let operator = Grants { operate: Reach::Everything, ..reader.clone() };
        let cases = [
            ("viewer", reader, false),
            ("operator", operator, false),
            ("registrar", Grants { registrar: [service.clone()].into(), ..Grants::default() }, false),
            ("service", Grants { registrar: [service].into(), ..process(None) }, false),
            ("proxy of a machine with an agent", process(Some("web-1")), true),
            ("agent", Grants { serve: Reach::Everything, ..process(Some("web-1")) }, true),
            ("admin", Grants::admin(), true),
        ];
        for (who, grants, may) in cases {
            let control = AccessControl::new(Node::replica());
            assert_eq!(SenderGrants { control, grants }.may_be("proxy of web-1"), may, "{who}");
        }
    }

    #[test]
    fn agent_states_no_spans_under_names_that_look_like_services() {
        let agent = Some(Label::new("red-1").unwrap());
        let machine = Some(Machine { agent, region: None, is_agent: true });
        let grants = Grants { machine, ..Grants::default() };
        let agent = SenderGrants { control: AccessControl::new(Node::replica()), grants };
        for name in ["Blue/vault", "blue/v\u{430}ult", "blue//vault"] {
            assert!(!agent.may_be(name) && !agent.may_know(name), "{name}");
        }
        assert!(agent.may_be("fairmesh-proxy") && agent.may_know("db.example"));
    }
}
