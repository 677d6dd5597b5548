//! Why a call would go where it goes, by what this very program knows: its snapshot, its subset, its own counts.
//!
//! `fairmesh explain` answers for a caller that it imagines; this answers from within one, for an admin page or a log.

use std::{fmt, sync::Arc, time::Duration};

use fairmesh_model::Location;
use fairmesh_router::{Ask, EndpointTarget, Explanation, RequestView};
use fairmesh_wire::transport::Address;
use http::Request;

use crate::{
    Fault, ServiceHandle,
    core::{Lane, Ready, View},
    headers,
    send::{self, HeadersView},
};

/// One decision with its reasons and what it rests on.
#[derive(Clone, Debug)]
pub struct Report {
    /// The decision of the service asked for and, where its route sends the call to another service, of that one.
    pub decisions: Vec<Decision>,
    /// The endpoint, or `None` where there is none; the last decision says why.
    pub endpoint: Option<Arc<EndpointTarget>>,
    /// How fresh the facts are.
    pub freshness: Freshness,
}

/// What one service's snapshot decided.
#[derive(Clone, Debug)]
pub struct Decision {
    /// The reasons.
    pub explanation: Explanation,
    /// The RIB revision of the last update that the snapshot was compiled from; 0 when it came from disk.
    pub revision: u64,
    /// The version of the shard map; 0 without one.
    pub map_version: u64,
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
        let timeout = context.timeout.unwrap_or(send::FIRST_CONTACT);
        let headers = HeadersView(request.headers());
        let request = RequestView {
            host: request.uri().authority().unwrap_or(&self.inner.marks.authority).as_str(),
            path: request.uri().path(),
            method: request.method().as_str(),
            headers: &headers,
            grpc: headers::is_grpc(request.headers()),
        };
        let ask = Ask { key: context.key, role: context.role.as_ref(), avoid: &[] };
        let now = self.inner.mesh.clock.now();
        let asked = send::ready(&self.inner.subscription, timeout).await?;
        let mut report = Report { decisions: Vec::new(), endpoint: None, freshness: self.freshness() };
        if let View::Ready(ready) = &*asked {
            let explanation = ready.upstream.explain(&request, &ask, now, seed);
            let elsewhere = explanation.picked.is_none();
            let other = elsewhere.then(|| ready.split(&explanation.target)).flatten();
            report.add(ready, explanation);
            if let Some(other) = other
                && let View::Ready(ready) = &*send::ready(other, timeout).await?
            {
                report.add(ready, ready.upstream.explain_pick(&ask, now, seed));
            }
        }
        Ok(report)
    }

    fn freshness(&self) -> Freshness {
        let state = self.inner.mesh.resolver.state().borrow().clone();
        Freshness {
            connected: state.connected,
            age: self.inner.mesh.resolver.data_age(),
            address: state.address,
            location: state.location,
            error: state.error,
        }
    }
}

impl Report {
    fn add<L: Lane>(&mut self, ready: &Ready<L>, explanation: Explanation) {
        if let Some(Ok(picked)) = &explanation.picked {
            self.endpoint = Some(Arc::clone(ready.upstream.target(picked.index)));
        }
        let (revision, map_version) = (ready.revision, ready.map_version);
        self.decisions.push(Decision { explanation, revision, map_version });
    }
}

impl fmt::Display for Report {
    /// One line a step, then what the facts rest on.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for decision in &self.decisions {
            for step in &decision.explanation.steps {
                writeln!(f, "{:<8} {}", step.title, step.detail)?;
            }
            if let Some(Err(why)) = &decision.explanation.picked {
                writeln!(f, "{:<8} {why}", "nobody")?;
            }
            writeln!(f, "{:<8} revision {} of {}", "facts", decision.revision, decision.explanation.target)?;
        }
        let from =
            self.freshness.address.as_ref().map(ToString::to_string).unwrap_or_else(|| "nobody".into());
        match (&self.freshness.connected, &self.freshness.error) {
            (true, _) => write!(f, "{:<8} from {from}, {:?} old", "", self.freshness.age),
            (false, error) => {
                let error = error.as_deref().unwrap_or("not connected");
                write!(f, "{:<8} from memory or disk, {:?} old; {from}: {error}", "", self.freshness.age)
            }
        }
    }
}
