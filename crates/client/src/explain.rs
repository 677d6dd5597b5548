//! Why a call would go where it goes.
//!
//! [`ServiceHandle::explain`] answers by what this very program knows, its snapshot, its subset, its own counts, for an
//! admin page or a log. `fairmesh explain` answers for a caller that it imagines, from records that it has just read, with
//! the same [`Report`].

use std::{fmt, sync::Arc, time::Duration};

use fairmesh_model::{BalancingPolicy, Location, ServiceName};
use fairmesh_router::{Ask, EndpointTarget, Explanation, Headers, RequestView, Upstream};
use fairmesh_wire::transport::Address;
use http::Request;

use crate::{
    Fault, FaultKind, Mesh, ServiceHandle,
    core::{FIRST_CONTACT, View},
    send::{self, HeadersView, authority},
};
use fairmesh_headers as headers;
use fairmesh_http::path::Path;

/// One decision with its reasons and what it rests on.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The decision of the service asked for and, where its route sends the call to another service, of that one.
    pub decisions: Vec<Decision>,
    /// The endpoint, or `None` where there is none; the last decision says why.
    pub endpoint: Option<Arc<EndpointTarget>>,
    /// How fresh the facts are; `None` where they were read for this report.
    pub freshness: Option<Freshness>,
}

/// The call to explain.
#[derive(Debug)]
pub struct Question<'a, H: Headers + ?Sized> {
    /// What routes look at.
    pub request: RequestView<'a, H>,
    /// What the pick depends on.
    pub ask: Ask<'a>,
    /// Nanoseconds of the clock by which the snapshot's counts go.
    pub now: u64,
    /// Chance: another number may give another endpoint.
    pub seed: u64,
}

/// What one service's snapshot decided.
#[derive(Clone, Debug)]
pub struct Decision {
    /// The reasons.
    pub explanation: Explanation,
    /// The RIB revision that the snapshot rests on; 0 when it came from disk.
    pub revision: u64,
    /// The version of the shard map; 0 without one.
    pub map_version: u64,
    /// What chooses among the endpoints that are left.
    pub policy: BalancingPolicy,
}

/// How fresh the facts are.
#[derive(Clone, Debug)]
pub struct Freshness {
    /// Whether the agent is connected.
    pub connected: bool,
    /// How long ago the facts were last confirmed.
    pub age: Duration,
    /// The agent, or control plane, that is followed.
    pub address: Option<Address>,
    /// Where the agent says that this program runs.
    pub location: Option<Location>,
    /// Why there is no connection.
    pub error: Option<String>,
}

impl ServiceHandle {
    /// Decides about a request as [`send`](Self::send) would right now, and says why; sends nothing. Chance is part of a
    /// decision: `seed` stands for it, and another one may give another endpoint.
    ///
    /// # Errors
    /// Where `send` would fail before it came to a decision: see [`FaultKind`](crate::FaultKind).
    pub async fn explain<B>(&self, request: &Request<B>, seed: u64) -> Result<Report, Fault> {
        let context = self.inner.context(request.headers())?;
        let timeout = context.timeout.unwrap_or(FIRST_CONTACT);
        let headers = HeadersView(request.headers());
        let authority = authority(request.uri().authority(), request.headers(), &self.inner.marks)?;
        let path = Path::of(request.uri().path_and_query().cloned(), request.extensions().get());
        let request = RequestView {
            host: authority.as_str(),
            path: path.as_str(),
            method: request.method().as_str(),
            headers: &headers,
            grpc: headers::is_grpc(request.headers()),
        };
        let ask = Ask { key: context.key, role: context.role.as_ref(), avoid: &[] };
        let question = Question { request, ask, now: self.inner.mesh.clock.now(), seed };
        let mut report = Report { freshness: Some(self.freshness()), ..Report::default() };
        let asked = send::ready(&self.inner.subscription, timeout).await?;
        if let View::Ready(ready) = &*asked {
            report.decide(&ready.upstream, ready.revision, &question);
            let other = report.goes_on_at().and_then(|name| ready.split(name));
            if let Some(other) = other
                && let View::Ready(ready) = &*send::ready(other, timeout).await?
            {
                report.decide(&ready.upstream, ready.revision, &question);
            }
        }
        Ok(report)
    }

    fn freshness(&self) -> Freshness {
        Mesh { shared: Arc::clone(&self.inner.mesh) }.freshness()
    }
}

impl Report {
    /// Adds what a snapshot decides: first that of the service asked for, then, where the call
    /// [goes on](Self::goes_on_at) elsewhere, that of the other service.
    pub fn decide<H: Headers + ?Sized>(
        &mut self,
        upstream: &Upstream,
        revision: u64,
        question: &Question<'_, H>,
    ) {
        let Question { request, ask, now, seed } = question;
        let explanation = match self.decisions.is_empty() {
            true => upstream.explain(request, ask, *now, *seed),
            // The key that the policy of the service asked for read in the request goes along.
            false => {
                let key = self.decisions[0].explanation.key;
                upstream.explain_pick(&Ask { key, ..*ask }, *now, *seed)
            }
        };
        if let Some(Ok(picked)) = &explanation.picked {
            self.endpoint = Some(Arc::clone(upstream.target(picked.index)));
        }
        let map_version = upstream.shards().map_or(0, |shards| shards.version());
        let policy = upstream.policy().balancing.policy;
        self.decisions.push(Decision { explanation, revision, map_version, policy });
    }

    /// The service to which a route sends the call, whose snapshot has yet to decide.
    pub fn goes_on_at(&self) -> Option<&ServiceName> {
        let last = &self.decisions.last()?.explanation;
        (last.picked.is_none() && last.instead.is_none()).then_some(&last.target)
    }
}

impl fmt::Display for Report {
    /// One line a step, then where the call goes or why nowhere, and what that rests on.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let steps = self.decisions.iter().flat_map(|decision| &decision.explanation.steps);
        for step in steps {
            writeln!(f, "{:<8} {}", step.title, step.detail)?;
        }
        if let Some(Decision { explanation, .. }) = self.decisions.last() {
            match (self.endpoint.as_deref(), &explanation.picked) {
                (Some(EndpointTarget { instance, address, location, .. }), _) => {
                    let (service, region) = (&explanation.target, &location.region);
                    writeln!(f, "{:<8} {service} {instance} at {address} in {region}", "goes to")?;
                }
                (None, None) if explanation.instead.is_some() => {
                    writeln!(f, "{:<8} without a server", "answered")?;
                }
                (None, Some(Err(why))) => {
                    writeln!(f, "{:<8} {why} ({})", "fails", FaultKind::from(&**why).label())?;
                }
                (None, _) => writeln!(f, "{:<8} {} is not known", "fails", explanation.target)?,
            }
        }
        for Decision { explanation, revision, map_version, policy } in &self.decisions {
            let map = if *map_version == 0 { String::new() } else { format!(", map version {map_version}") };
            let (of, policy) = (&explanation.target, policy.as_str());
            writeln!(f, "{:<8} revision {revision} of {of}{map}, balanced by {policy}", "facts")?;
        }
        self.freshness.iter().try_for_each(|freshness| writeln!(f, "{:<8} {freshness}", ""))
    }
}

impl fmt::Display for Freshness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let from = self.address.as_ref().map(ToString::to_string).unwrap_or_else(|| "nobody".into());
        match (&self.connected, &self.error) {
            (true, _) => write!(f, "from {from}, {:?} old", self.age),
            (false, error) => {
                let error = error.as_deref().unwrap_or("not connected");
                write!(f, "from memory or disk, {:?} old; {from}: {error}", self.age)
            }
        }
    }
}
