//! Authorization of calls that local programs make through the agent.
//!
//! The agent signs each call that it forwards, and control planes judge the call by the agent's rights: they do not see the
//! program. So the agent forwards a write only for a service whose identity it would issue to the calling program, by the same
//! code, and no call of an operator at all. Each method has a row in [`method_permissions`], and a test fails for a method without one. A
//! check in each handler was rejected: one would be forgotten.
//!
//! A program that signs its call itself needs no permission here: the control plane judges the signer.

mod claimed_services;
mod method_permissions;
mod program_permissions;
mod report_sender;

use std::{collections::BTreeSet, mem, sync::Arc};

use axum::{
    body::{Body, Bytes, to_bytes},
    extract::{Request, State},
    http::Extensions,
    middleware::{Next, from_fn_with_state},
    response::Response,
};
use claimed_services::Asked;
use fairmesh_model::{Identity, ProgramFacts, Region, ServiceName, SpiffeId};
use fairmesh_rib::{
    access::{
        CountedRows, RefusedRows, RefusedSubjects, RowSubject, incomplete_services, is_refusal,
        limit_statements,
        request_needs::{FRAME, one_message},
    },
    follower::FollowerHandle,
};
use fairmesh_wire::{LogLimiter, STATEMENT, grpc_stubs::MAX_MESSAGE, transport::Services};
use method_permissions::{Access, METHODS};
use program_permissions::{ProgramPermissions, RefusedCalls};
pub(crate) use report_sender::ReportSender;
use tonic::Status;

use crate::identity::{AgentIdentity, is_own_user};

/// Authorizes calls of local programs. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Gate {
    /// Identity of the agent. `None` if the agent cannot have one; it then signs no calls.
    identity: Option<AgentIdentity>,
    permissions: Arc<ProgramPermissions>,
    /// The region of this agent.
    region: Region,
}

/// The program that calls this agent.
#[derive(Clone, Debug)]
enum Program {
    /// A program run by root or the agent's own user. The agent issues every identity to such a program.
    Own,
    /// A program of another user.
    Other(Arc<ProgramFacts>),
    /// A TCP peer with an authenticated identity.
    Proved(SpiffeId),
    /// An unidentified TCP peer.
    Unknown,
}

impl Gate {
    pub(crate) fn new(identity: Option<AgentIdentity>, upstream: FollowerHandle, region: Region) -> Self {
        Self { identity, permissions: Arc::new(ProgramPermissions::new(upstream)), region }
    }

    /// Wraps the services so that every call passes the gate.
    pub(crate) fn guard(self, services: Services) -> Services {
        services.map_calls(|calls| calls.into_axum_router().layer(from_fn_with_state(self, guard)).into())
    }

    /// The identity of this agent, if the mesh uses identities.
    async fn member(&self, access: Access) -> Result<Option<&AgentIdentity>, Status> {
        let Some(identity) = &self.identity else { return Ok(None) };
        match (identity.is_member().await, access) {
            (Some(true), _) => Ok(Some(identity)),
            // Reports are queued for a control plane even if the mesh has no trust domain.
            (Some(false), _) | (None, Access::Answered(_)) => Ok(None),
            (None, _) => Err(Status::unavailable(
                "no control plane answers this agent, which does not know yet whether the mesh has a trust domain; retry when one does",
            )),
        }
    }

    async fn check(&self, request: Request) -> Result<Request, Status> {
        let Some(row) = METHODS.iter().find(|row| row.path == request.uri().path()) else {
            return Err(Status::unimplemented("an agent does not serve the method"));
        };
        let needs = match row.access {
            Access::Everyone => return Ok(request),
            Access::Forwarded(_) if request.headers().contains_key(STATEMENT) => return Ok(request),
            Access::Forwarded(needs) | Access::Answered(needs) => needs,
        };
        let (mut head, body) = request.into_parts();
        let program = Program::of(&head.extensions);
        // Known before the mesh has a trust domain, or the agent knows of it: a program whose name changed then would be
        // counted twice until its earlier reports expire.
        let permissions = Arc::clone(&self.permissions);
        let mut sender = ReportSender { member: None, permissions, program: program.clone() };
        let Some(identity) = self.member(row.access).await? else {
            head.extensions.insert(sender);
            return Ok(Request::from_parts(head, body));
        };
        let body = to_bytes(body, MAX_MESSAGE + FRAME).await;
        let body = body.map_err(|error| Status::from_error(Box::new(error)))?;
        let mut asked = Asked::of(&needs(one_message(&body)?)?)?;
        // Even an empty report takes up memory in the agent's sums.
        asked.calls_any |= matches!(row.access, Access::Answered(_));
        let decided = self.decide(identity, &program, &asked).await;
        decided.inspect_err(|refused| log_refusal(row.path, refused))?;
        let kept = self.keep_permitted_rows((identity, &program), (row.path, body)).await;
        let (body, refused) = kept.inspect_err(|refused| log_refusal(row.path, refused))?;
        head.extensions.insert(refused);
        sender.member = Some(identity.clone());
        head.extensions.insert(sender);
        Ok(Request::from_parts(head, Body::from(body)))
    }

    /// Returns the body of a permitted call, without those rows of counts and incomplete services that the program may
    /// not report.
    async fn keep_permitted_rows(
        &self,
        (identity, program): (&AgentIdentity, &Program),
        (path, body): (&str, Bytes),
    ) -> Result<(Bytes, RefusedRows), Status> {
        let all = RefusedRows::default();
        if matches!(program, Program::Own) {
            return Ok((body, all));
        }
        let body = self.limit_statements((identity, program), (path, body)).await?;
        let Some(rows) = CountedRows::of(path, &body)? else { return Ok((body, all)) };
        let needs = rows.subjects().map(RowSubject::needs).collect::<Result<Vec<_>, _>>()?;
        // Ask once for all rows: a report has thousands, and is sent again if it takes seconds.
        let mut asked = Asked::of(&needs.concat())?;
        let refused_calls = self.refused_calls(identity, program, &mem::take(&mut asked.calls)).await?;
        if refused_calls.is_empty() {
            match self.decide(identity, program, &asked).await {
                Ok(()) => return Ok((body, all)),
                Err(status) if !is_refusal(&status) => return Err(status),
                Err(_) => {}
            }
        }
        let mut refused = RefusedSubjects::new();
        for (subject, needs) in rows.subjects().zip(&needs) {
            let mut asked = Asked::of(needs)?;
            let calls = mem::take(&mut asked.calls);
            let decided = match calls.iter().find_map(|service| refused_calls.get(service)) {
                Some(reason) => Err(reason.clone()),
                None => self.decide(identity, program, &asked).await,
            };
            match decided {
                Ok(()) => {}
                Err(reason) if is_refusal(&reason) => drop(refused.insert(subject.clone(), reason)),
                Err(status) => return Err(status),
            }
        }
        if let Some((_, reason)) = refused.first_key_value() {
            log_refusal(path, reason);
        }
        rows.without(&refused)
    }
}

impl Gate {
    /// Returns the body of a call without incomplete services that the program may not call. Sums ignore services of
    /// other tenants among them.
    async fn limit_statements(
        &self,
        (identity, program): (&AgentIdentity, &Program),
        (path, body): (&str, Bytes),
    ) -> Result<Bytes, Status> {
        let named = incomplete_services(path, &body)?;
        let refused = match named.is_empty() {
            true => RefusedCalls::new(),
            false => self.refused_calls(identity, program, &named).await?,
        };
        // Programs have no sums to pass on.
        let sends_sums = matches!(program, Program::Own);
        limit_statements((path, body), sends_sums, |service| !refused.contains_key(service))
    }

    async fn decide(&self, identity: &AgentIdentity, program: &Program, asked: &Asked) -> Result<(), Status> {
        match program {
            Program::Own => Ok(()),
            Program::Other(program) => {
                asked.check_region(&self.region)?;
                self.permissions.check(identity, program, asked).await
            }
            Program::Proved(id) => {
                asked.check_region(&self.region)?;
                self.permissions.check_proved(id, asked).await
            }
            Program::Unknown => Err(unknown()),
        }
    }
}

impl Gate {
    /// Returns the services in a report that the program may not call.
    async fn refused_calls(
        &self,
        identity: &AgentIdentity,
        program: &Program,
        calls: &BTreeSet<ServiceName>,
    ) -> Result<RefusedCalls, Status> {
        match program {
            Program::Own => Ok(RefusedCalls::new()),
            Program::Other(program) => self.permissions.refused_calls(identity, program, calls).await,
            Program::Proved(id) => self.permissions.calls_refused_to_proved(id, calls).await,
            Program::Unknown => Err(unknown()),
        }
    }
}

impl Program {
    fn of(extensions: &Extensions) -> Self {
        match extensions.get::<Identity>() {
            Some(Identity::Local { uid }) if is_own_user(*uid) => Self::Own,
            Some(Identity::Local { .. }) => extensions
                .get::<Arc<ProgramFacts>>()
                .map_or(Self::Unknown, |facts| Self::Other(facts.clone())),
            Some(Identity::Spiffe(id)) => Self::Proved(id.clone()),
            Some(Identity::Anonymous | Identity::Federated(_)) | None => Self::Unknown,
        }
    }
}

async fn guard(State(gate): State<Gate>, request: Request, next: Next) -> Response {
    match gate.check(request).await {
        Ok(request) => next.run(request).await,
        Err(refused) => refused.into_http(),
    }
}

fn unknown() -> Status {
    Status::permission_denied("the caller proves no identity to this agent")
}

fn log_refusal(path: &str, refused: &Status) {
    static REFUSED: LogLimiter = LogLimiter::new();
    if let Some(suppressed) = REFUSED.next() {
        let reason = refused.message();
        tracing::warn!(path, reason, suppressed, "a call of a program is not forwarded");
    }
}
