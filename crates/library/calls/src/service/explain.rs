use fairmesh_headers::{HeaderMapView, is_grpc};
use fairmesh_http::path::Path;
use fairmesh_router::{PickParams, RequestView};
use http::Request;

use super::ServiceHandle;
use crate::{
    discovery::{DEFAULT_READY_TIMEOUT, ServiceState, wait_ready},
    dispatch::request_authority,
    fault::Fault,
    observe::{self, CallExplanation, EndpointStatus, Question},
};

impl ServiceHandle {
    /// Makes the decision that [`send`](Self::send) would now make about a request, and returns it with its reasons;
    /// sends nothing. Decisions depend on random choices, which `seed` determines: another seed may give another
    /// endpoint.
    ///
    /// # Errors
    /// `send` would fail before a decision; see [`FaultKind`](crate::FaultKind).
    pub async fn explain<B>(&self, request: &Request<B>, seed: u64) -> Result<CallExplanation, Fault> {
        let context = self.inner.context(request.headers())?;
        let timeout = context.timeout.unwrap_or(DEFAULT_READY_TIMEOUT);
        let headers = HeaderMapView(request.headers());
        let defaults = &self.inner.default_headers;
        let authority = request_authority(request.uri().authority(), request.headers(), &defaults.authority)?;
        let path = Path::of(request.uri().path_and_query().cloned(), request.extensions().get());
        let request = RequestView {
            host: authority.as_str(),
            path: path.as_str(),
            method: request.method().as_str(),
            headers: &headers,
            grpc: is_grpc(request.headers()),
        };
        let ask = PickParams {
            key: context.key,
            role: context.role.as_ref(),
            call_seed: seed,
            ..PickParams::default()
        };
        let mut report =
            CallExplanation { freshness: Some(self.inner.mesh.freshness()), ..CallExplanation::default() };
        let state = wait_ready(&self.inner.subscription, timeout).await?;
        let empty = match &*state {
            ServiceState::Ready(ready) => ready.empty_backends(),
            _ => Vec::new(),
        };
        let question = Question { request, ask, now: self.inner.mesh.clock.now(), seed, empty: &empty };
        if let ServiceState::Ready(ready) = &*state {
            observe::explain(&mut report, &ready.upstream, ready.revision, &question);
            let next = report.next_service().and_then(|name| ready.split(name));
            if let Some(next) = next
                && let ServiceState::Ready(ready) = &*wait_ready(next, timeout).await?
            {
                observe::explain(&mut report, &ready.upstream, ready.revision, &question);
            }
        }
        Ok(report)
    }

    /// Endpoints of the service as seen by this client, with its ejections. Empty until the records are known.
    pub fn endpoint_status(&self) -> Vec<EndpointStatus> {
        let now = self.inner.mesh.clock.now();
        match &*self.inner.subscription.state() {
            ServiceState::Ready(ready) => EndpointStatus::all(&ready.upstream, now),
            _ => Vec::new(),
        }
    }

    /// Number of endpoints that this client avoids because of the outcomes of its calls.
    pub fn ejected_endpoints(&self) -> usize {
        match &*self.inner.subscription.state() {
            ServiceState::Ready(ready) => ready.upstream.ejected(self.inner.mesh.clock.now()),
            _ => 0,
        }
    }
}
