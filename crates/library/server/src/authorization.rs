//! Authorizes calls. The server follows its service's policy, which decides about each request.

mod accepted_call;
mod caller;
mod connection;
mod forwarded_probe;
mod policy_watch;
mod requests_by_caller;

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use fairmesh_headers::{AllSpellings, CALLER, remove_all_spellings};
use fairmesh_identity::{Clock as _, SystemClock};
use fairmesh_model::{CallerId, DefaultAuthorization, Identity, Policy, Probe, ServiceName};
use fairmesh_router::{
    AuthorizationDecision, AuthorizationRequest, AuthorizationTable, DecisionReason, NeedsSidecar,
    RequestAttributes, TokenRefusal, UserToken,
};
use fairmesh_tokens::Issuers;
use fairmesh_wire::transport::{FederatedCallers, PlaintextCallers, Transport};
use hazarc::AtomicOptionArc;
use http::{HeaderMap, HeaderName, Method, Request, header, uri::PathAndQuery};
use tokio::{sync::watch, time::Instant};

pub use accepted_call::AcceptedCall;
pub use caller::{Caller, ConnectInfo};
pub use connection::{ConnectionAuthorizer, identity_of};
pub(crate) use policy_watch::PolicySubscription;
pub use requests_by_caller::{CountedBody, CountedRequest};

use crate::{
    RegistryClient,
    layer::{
        denied_counts::{DeniedCounts, DeniedRequest},
        processed_call::ServedClasses,
    },
};

/// Maximum number of log lines about refused calls per second. The counters include all calls.
const MAX_LINES: u64 = 5;
const LOG_INTERVAL: Duration = Duration::from_secs(1);

/// Decides which calls a server accepts. Without a policy it accepts all calls.
#[derive(Debug, Default)]
pub(crate) struct Authorizer {
    service: Option<ServiceName>,
    /// Transport through which callers connect. A server may learn only after its first calls whether callers prove
    /// identities.
    transport: Transport,
    /// Tracks callers without an identity on a mutual TLS server; the policy may permit them.
    plaintext_callers: Option<Arc<PlaintextCallers>>,
    /// The callers from other trust domains that the policy may name.
    federated_callers: Option<Arc<FederatedCallers>>,
    table: AtomicOptionArc<AuthorizationTable>,
    /// The issuers whose keys verify end users' tokens.
    issuers: AtomicOptionArc<Issuers>,
    /// Counter of table changes.
    changes: watch::Sender<u64>,
    refused: AtomicU64,
    audited: AtomicU64,
    /// Calls that the rules do not allow, for traffic reports.
    pub(crate) denied: DeniedCounts,
    log_limit: LogLimit,
}

/// Reason why a call is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotAccepted {
    /// The policy does not allow the call.
    Refused,
    /// The policy, or the keys of token issuers, are unknown so far.
    Unknown,
    /// The end user's token is not accepted.
    BadToken,
}

impl Authorizer {
    /// Creates the authorizer for a server of this service behind `transport`.
    pub(crate) fn of_server(service: ServiceName, transport: &Transport) -> Self {
        let plaintext_callers = transport.plaintext_callers().cloned();
        let federated_callers = transport.federated_callers().cloned();
        let transport = transport.clone();
        Self { service: Some(service), transport, plaintext_callers, federated_callers, ..Self::default() }
    }

    /// Whether calls are refused until the policy is known. This is the case if callers prove identities. A plaintext
    /// server cannot distinguish callers, so it works without its agent.
    fn waits_for_policy(&self) -> bool {
        self.transport.is_tls()
    }

    /// Follows the policy until the returned subscription is dropped. The policy also defines the traffic classes of
    /// calls.
    pub(crate) fn follow(
        self: &Arc<Self>,
        registry: &RegistryClient,
        served: &Arc<ServedClasses>,
    ) -> Option<PolicySubscription> {
        let service = self.service.clone()?;
        let readers = (Arc::clone(self), Arc::clone(served));
        Some(policy_watch::follow(registry, service, readers))
    }

    /// Waits until the policy is known.
    pub(crate) async fn ready(&self) {
        if self.waits_for_policy() {
            // The sender lives as long as `self`.
            let _ = self.changes.subscribe().wait_for(|_| self.table.load().is_some()).await;
        }
    }

    pub(crate) fn set(&self, table: AuthorizationTable) {
        self.accept_peers(&table);
        self.store(Some(table));
    }

    /// Refuses all calls while the policy cannot be read. A server that waits for its policy refuses again.
    pub(crate) fn set_unreadable(&self) {
        let policy = Policy { authorization: Some(Box::default()), ..Policy::default() };
        let table = AuthorizationTable::compile(&policy, DefaultAuthorization::Deny, None);
        self.accept_peers(&table);
        self.store((!self.waits_for_policy()).then_some(table));
    }

    /// Tells the transport which callers without an identity of this mesh it may accept.
    fn accept_peers(&self, table: &AuthorizationTable) {
        if let Some(callers) = &self.plaintext_callers {
            callers.permit(table.permits_plaintext());
        }
        if let Some(callers) = &self.federated_callers {
            callers.accept(table.whole_ids());
        }
    }

    fn store(&self, table: Option<AuthorizationTable>) {
        self.table.store(table.map(Arc::new));
        self.changes.send_modify(|changes| *changes += 1);
    }

    /// Replaces the issuers of tokens.
    pub(crate) fn set_issuers(&self, issuers: Issuers) {
        self.issuers.store(Some(Arc::new(issuers)));
    }

    /// Authorizes a request, and inserts the caller and the token into its extensions.
    pub(crate) fn accept<B>(&self, request: &mut Request<B>) -> Result<(), NotAccepted> {
        let peer = caller::peer_of(request.extensions_mut());
        let table = self.table.load();
        let Some(table) = table.as_ref() else {
            remove_all_spellings(request.headers_mut(), &[CALLER]);
            return if self.waits_for_policy() { Err(NotAccepted::Unknown) } else { Ok(()) };
        };
        let caller = self.caller(table, request, peer)?;
        let token = self.token(table, request, caller.as_ref())?;
        let headers = AllSpellings(request.headers());
        let source = caller::source_of(request.extensions());
        let decided = AuthorizationRequest {
            caller: caller.as_ref().map(Caller::verified),
            method: request.method().as_str(),
            path: request.uri().path_and_query().map_or(request.uri().path(), PathAndQuery::as_str),
            attributes: RequestAttributes { source, token: token.as_deref(), headers: &headers },
        };
        let decision = table.decide(&decided);
        self.note(&decision, &decided);
        let permits = decision.permits();
        let is_probe = decision.reason == DecisionReason::HealthCheck;
        if is_probe && !reduce_to_probe(request) {
            self.refused.fetch_add(1, Relaxed);
            return Err(NotAccepted::Refused);
        }
        caller.map(|caller| request.extensions_mut().insert(caller));
        token.map(|token| request.extensions_mut().insert(token));
        if permits { Ok(()) } else { Err(NotAccepted::Refused) }
    }

    /// Returns the caller of a request: its peer, or the caller that an intermediary states.
    fn caller<B>(
        &self,
        table: &AuthorizationTable,
        request: &mut Request<B>,
        peer: Option<Caller>,
    ) -> Result<Option<Caller>, NotAccepted> {
        if peer.is_none() && self.requires_identity(table) {
            return Err(self.refuse_peer(None, request));
        }
        match peer {
            Some(peer) if table.is_intermediary(peer.verified()) => {
                let stated = stated_caller(request.headers(), &peer);
                stated.map(Some).map_err(|NotStated| self.refuse_peer(Some(&peer), request))
            }
            peer => {
                // Only intermediaries may state a caller, so the header is removed before handlers see it.
                remove_all_spellings(request.headers_mut(), &[CALLER]);
                Ok(peer)
            }
        }
    }

    /// Counts a request that is refused because of its peer before the call itself is authorized.
    fn refuse_peer<B>(&self, peer: Option<&Caller>, request: &Request<B>) -> NotAccepted {
        self.refused.fetch_add(1, Relaxed);
        let peer = peer.map(|peer| peer.verified().as_str());
        self.denied.count(peer, None, false, DeniedRequest::of_request(request));
        NotAccepted::Refused
    }

    /// Returns the request's token if this service accepts it.
    fn token<B>(
        &self,
        table: &AuthorizationTable,
        request: &Request<B>,
        caller: Option<&Caller>,
    ) -> Result<Option<Arc<UserToken>>, NotAccepted> {
        let issuers = self.issuers.load();
        let unknown = Issuers::unknown(system_time);
        let issuers = issuers.as_ref().map_or(&unknown, |issuers| &**issuers);
        match table.read_token(&AllSpellings(request.headers()), issuers) {
            Ok(token) => Ok(token.map(Arc::new)),
            Err(TokenRefusal::Unknown) => Err(NotAccepted::Unknown),
            Err(problem @ TokenRefusal::Refused(_)) => {
                let _ = self.refuse_peer(caller, request);
                if self.log_limit.permits() {
                    let caller = caller.map_or("a caller without an identity", |one| one.verified().as_str());
                    tracing::info!(caller, %problem, "a call is refused");
                }
                Err(NotAccepted::BadToken)
            }
        }
    }

    /// Returns the caller of a request on an accepted connection: the peer, as long as its connection stays accepted.
    /// For an intermediary, returns the caller that it states, or otherwise the intermediary itself; the request is
    /// authorized for that caller.
    pub(crate) fn caller_through<B>(
        &self,
        request: &mut Request<B>,
        peer: Option<&Caller>,
    ) -> Result<Option<Caller>, NotAccepted> {
        let table = self.table.load();
        let intermediary =
            peer.zip(table.as_ref()).filter(|(peer, table)| table.is_intermediary(peer.verified()));
        let Some((peer, table)) = intermediary else {
            // An earlier policy accepted the connection, perhaps because the peer was an intermediary.
            self.decide_caller(peer, |_, _| {})?;
            return Ok(peer.cloned());
        };
        let stated = stated_caller(request.headers(), peer);
        let caller = stated.map_err(|NotStated| self.refuse_peer(Some(peer), request))?;
        let token = self.token(table, request, Some(&caller))?;
        let decided = AuthorizationRequest {
            caller: Some(caller.verified()),
            method: request.method().as_str(),
            path: request.uri().path_and_query().map_or(request.uri().path(), PathAndQuery::as_str),
            attributes: RequestAttributes {
                source: None,
                token: token.as_deref(),
                headers: &AllSpellings(request.headers()),
            },
        };
        let decision = table.decide(&decided);
        self.note(&decision, &decided);
        let is_accepted = decision.permits() && decision.reason != DecisionReason::HealthCheck;
        token.map(|token| request.extensions_mut().insert(token));
        if is_accepted { Ok(Some(caller)) } else { Err(NotAccepted::Refused) }
    }

    /// Whether a peer is an intermediary, which may state callers.
    pub(crate) fn is_intermediary(&self, peer: &Identity) -> bool {
        let caller = Caller::of(peer);
        let table = self.table.load();
        caller.zip(table.as_ref()).is_some_and(|(caller, table)| table.is_intermediary(caller.verified()))
    }

    /// Resolves once an accepted call is no longer allowed, or its token has expired.
    pub(crate) async fn call_revoked(&self, call: &AcceptedCall) {
        let mut changes = self.changes();
        let revoked = async {
            while self.still_accepts_call(call) {
                changes.changed().await;
            }
        };
        tokio::select! {
            () = call.ended() => {}
            () = revoked => {}
        }
    }

    /// Whether an accepted call is still allowed. A health check opens no connection that outlives it.
    fn still_accepts_call(&self, call: &AcceptedCall) -> bool {
        let table = self.table.load();
        let Some(table) = table.as_ref() else { return !self.waits_for_policy() };
        let caller = call.caller.as_ref();
        let is_stated_by_other =
            caller.and_then(Caller::intermediary).is_some_and(|via| !table.is_intermediary(via));
        if is_stated_by_other || (caller.is_none() && self.requires_identity(table)) {
            return false;
        }
        call.judged(|call| {
            let decision = table.decide(call);
            decision.permits() && decision.reason != DecisionReason::HealthCheck
        })
    }

    /// Authorizes a connection whose requests are not parsed.
    pub(crate) fn accept_connection(&self, peer: &Identity) -> Result<(), NotAccepted> {
        self.decide_connection(peer, |decision, call| self.note(decision, call))
    }

    /// Whether an accepted connection is still allowed.
    pub(crate) fn still_accepts(&self, peer: &Identity) -> bool {
        self.reason_to_refuse(peer).is_none()
    }

    /// Why connections of this peer are refused now; `None` if they are accepted.
    pub(crate) fn reason_to_refuse(&self, peer: &Identity) -> Option<NotAccepted> {
        self.decide_connection(peer, |_, _| {}).err()
    }

    fn decide_connection(
        &self,
        peer: &Identity,
        note: impl FnOnce(&AuthorizationDecision<'_>, &AuthorizationRequest<'_>),
    ) -> Result<(), NotAccepted> {
        let caller = Caller::of(peer);
        self.decide_caller(caller.as_ref(), note)
    }

    fn decide_caller(
        &self,
        caller: Option<&Caller>,
        note: impl FnOnce(&AuthorizationDecision<'_>, &AuthorizationRequest<'_>),
    ) -> Result<(), NotAccepted> {
        let table = self.table.load();
        let Some(table) = table.as_ref() else {
            return if self.waits_for_policy() { Err(NotAccepted::Unknown) } else { Ok(()) };
        };
        if caller.is_none() && self.requires_identity(table) {
            return Err(NotAccepted::Refused);
        }
        let caller = caller.map(Caller::verified);
        let decision = table.decide_connection(caller);
        let attributes = RequestAttributes::default();
        note(&decision, &AuthorizationRequest { caller, method: "", path: "", attributes });
        if decision.permits() { Ok(()) } else { Err(NotAccepted::Refused) }
    }

    /// Whether every request of a peer is allowed, so that none of them has to be seen here.
    ///
    /// # Errors
    /// Why the peer has to send its requests here.
    pub(crate) fn decide_local(&self, peer: Option<&Caller>) -> Result<(), NeedsSidecar> {
        // As long as the policy is not known, none is allowed.
        let table = self.table.load();
        let table = table.as_ref().ok_or(NeedsSidecar::NotAllowed)?;
        table.decide_local(peer.map(Caller::verified))
    }

    /// The health probe that a peer may send even without permission to use the service.
    pub(crate) fn probe_for(&self, peer: &Identity) -> Option<Probe> {
        let caller = Caller::of(peer);
        let table = self.table.load();
        table.as_ref()?.probe_for(caller.as_ref().map(Caller::verified)).cloned()
    }

    /// Whether callers without an identity are refused. They may have connected in plaintext while the policy
    /// permitted plaintext.
    fn requires_identity(&self, table: &AuthorizationTable) -> bool {
        self.plaintext_callers.is_some() && self.transport.is_tls() && !table.permits_plaintext()
    }

    /// Returns a value that notifies when decisions may change. The authorizer must outlive it.
    pub(crate) fn changes(&self) -> Changes {
        Changes { policy: self.changes.subscribe(), tls: self.transport.tls_changes() }
    }

    /// Total number of refused calls, and of calls that the rules do not allow but that were let through.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.refused.load(Relaxed), self.audited.load(Relaxed))
    }

    /// Total number of plaintext connections accepted because the policy permits them.
    pub(crate) fn plaintext_connections(&self) -> u64 {
        self.plaintext_callers.as_ref().map_or(0, |callers| callers.connections())
    }

    fn note(&self, decision: &AuthorizationDecision<'_>, call: &AuthorizationRequest<'_>) {
        if decision.is_allowed {
            return;
        }
        let count = if decision.is_audit { &self.audited } else { &self.refused };
        count.fetch_add(1, Relaxed);
        let rule = match decision.reason {
            DecisionReason::Rule(rule) => Some(rule),
            _ => None,
        };
        let request = DeniedRequest::of(call.method, call.path);
        self.denied.count(call.caller.map(CallerId::as_str), rule, decision.is_audit, request);
        if self.log_limit.permits() {
            let caller = call.caller.map_or("a caller without an identity", CallerId::as_str);
            match (call.method, call.path) {
                ("", _) => tracing::info!(caller, "a connection is {decision}"),
                (method, path) => tracing::info!(caller, method, path, "a call is {decision}"),
            }
        }
    }
}

/// Notifies when decisions about calls may change.
#[derive(Debug)]
pub(crate) struct Changes {
    policy: watch::Receiver<u64>,
    /// Changes when callers start or stop proving identities.
    tls: watch::Receiver<()>,
}

impl Changes {
    pub(crate) async fn changed(&mut self) {
        tokio::select! {
            _ = self.policy.changed() => {}
            // Most transports have no sender.
            Ok(()) = self.tls.changed() => {}
        }
    }
}

/// Time since 1970, for the validity of tokens.
pub(crate) fn system_time() -> Duration {
    SystemClock.now()
}

/// Headers allowed in a probe. Other headers could change its meaning for some programs, for example to another path,
/// another method or an upgrade.
const PROBE_HEADERS: [HeaderName; 9] = [
    header::HOST,
    header::USER_AGENT,
    header::CONTENT_TYPE,
    header::CONTENT_LENGTH,
    header::TRANSFER_ENCODING,
    header::TE,
    HeaderName::from_static("grpc-encoding"),
    HeaderName::from_static("grpc-accept-encoding"),
    HeaderName::from_static("grpc-timeout"),
];

/// Removes everything from a request that a probe must not have. Returns whether the result is a probe; over HTTP, a
/// probe must have no body.
fn reduce_to_probe<B>(request: &mut Request<B>) -> bool {
    let has_body = [header::CONTENT_LENGTH, header::TRANSFER_ENCODING]
        .iter()
        .any(|name| request.headers().contains_key(name));
    if request.method() == Method::GET && has_body {
        return false;
    }
    let mut kept = HeaderMap::new();
    for name in PROBE_HEADERS {
        for value in request.headers().get_all(&name) {
            kept.append(&name, value.clone());
        }
    }
    *request.headers_mut() = kept;
    true
}

/// Error: an intermediary did not state exactly one caller of its trust domain.
struct NotStated;

/// Returns the caller stated by an intermediary, or the intermediary itself if it states none.
fn stated_caller(headers: &HeaderMap, peer: &Caller) -> Result<Caller, NotStated> {
    let mut stated = headers.get_all(CALLER).iter();
    let Some(first) = stated.next() else { return Ok(peer.clone()) };
    let id = first.to_str().ok().and_then(|text| text.parse::<fairmesh_model::SpiffeId>().ok());
    match (id, stated.next()) {
        (Some(id), None) if id.domain == peer.id().domain => Ok(Caller::through(id, peer)),
        _ => Err(NotStated),
    }
}

/// Limits the number of log lines per second.
#[derive(Debug, Default)]
struct LogLimit(Mutex<Option<(Instant, u64)>>);

impl LogLimit {
    fn permits(&self) -> bool {
        let now = Instant::now();
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (since, lines) = held.filter(|(since, _)| now - *since < LOG_INTERVAL).unwrap_or((now, 0));
        *held = Some((since, lines + 1));
        lines < MAX_LINES
    }
}
