//! One request: found out for whom, sent as a call of the library, answered.

mod captured;
mod connect;
mod named;
mod plain;

use std::{net::SocketAddr, sync::Arc};

use bytes::Bytes;
use fairmesh_client::{Body, BoxError, Fault, FaultKind, Region, ServiceName, Watch};
use fairmesh_headers::{grpc_content_type, is_grpc};
use fairmesh_http::path::RawPath;
use http::{HeaderValue, Method, Request, Response, StatusCode, Version, request::Parts};
use tokio::time::Instant;

use crate::{
    answer, hops,
    insight::{Seeing, Story},
    max_body::{self, Limited},
    metrics::{Held, Metrics, count},
    onward::Onward,
    place::Place,
    recent::Recent,
    service::{Nobody, Services, Target},
    tunnel::{Switch, Tunnels},
};

pub(crate) use captured::Captured;
pub(crate) use plain::Answering;

/// Forwards requests of all connections.
#[derive(Debug)]
pub(crate) struct Forwarder {
    services: Arc<Services>,
    pub(crate) metrics: Arc<Metrics>,
    seeing: Arc<Seeing>,
    tunnels: Tunnels,
    pub(crate) onward: Onward,
    max_body: u64,
}

/// Where a request came in.
#[derive(Debug)]
pub(crate) struct Origin {
    pub(crate) caller: SocketAddr,
    /// Whom the listener is for.
    pub(crate) service: Option<ServiceName>,
    /// What the connection holds.
    pub(crate) place: Arc<Place>,
    /// Whether its program speaks TLS.
    pub(crate) over_tls: bool,
    /// Whether its program may ask for tunnels where no route says so.
    pub(crate) connects: bool,
    /// How it came to be here, where its program knows nothing of that.
    pub(crate) captured: Option<Captured>,
    recent: Recent,
}

impl Origin {
    pub(crate) fn new(caller: SocketAddr, service: Option<ServiceName>, place: Arc<Place>) -> Self {
        let recent = Recent::default();
        Self { caller, service, place, over_tls: false, connects: false, captured: None, recent }
    }

    /// The same, over TLS or not.
    pub(crate) fn over_tls(self, over_tls: bool) -> Self {
        Self { over_tls, ..self }
    }

    /// The same, with leave to ask for tunnels or without.
    pub(crate) fn connecting(self, connects: bool) -> Self {
        Self { connects, ..self }
    }

    /// One whose program meant somebody else.
    pub(crate) fn captured(caller: SocketAddr, place: Arc<Place>, captured: Captured) -> Self {
        Self { captured: Some(captured), ..Self::new(caller, None, place) }
    }
}

impl Forwarder {
    pub(crate) fn new(
        services: Arc<Services>,
        metrics: Arc<Metrics>,
        seeing: Arc<Seeing>,
        tunnels: Tunnels,
    ) -> Self {
        Self { services, metrics, seeing, tunnels, onward: Onward::default(), max_body: max_body::ANY }
    }

    /// The same, for bodies of requests no longer than this.
    pub(crate) fn limited(mut self, max_body: Option<u64>) -> Self {
        self.max_body = max_body.unwrap_or(max_body::ANY);
        self
    }

    /// Answers a request, whatever happens.
    pub(crate) async fn answer<B>(&self, request: Request<B>, origin: &Origin) -> Response<Body>
    where
        B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + Unpin + 'static,
    {
        let request = match &origin.captured {
            None => request,
            Some(captured) => match self.admit(request, captured).await {
                Ok(request) => request,
                Err(answer) => return answer,
            },
        };
        if request.method() == Method::CONNECT {
            return Box::pin(self.connect(request, origin)).await;
        }
        match self.target(&request, origin) {
            Ok(target) => self.forward(request, origin, &target).await,
            Err(nobody) => {
                self.count_nobody(&nobody);
                let kind = match nobody {
                    Nobody::NoHost | Nobody::Malformed(_) => FaultKind::Invalid,
                    Nobody::NoName(_) => FaultKind::UnknownService,
                    Nobody::TooMany { .. } => FaultKind::Unavailable,
                };
                answer::of_fault(&Fault::new(kind, nobody.to_string()), grpc_content_type(request.headers()))
            }
        }
    }

    /// The service that the listener is for, or else that of this host.
    fn target_of(&self, host: &str, origin: &Origin) -> Result<Arc<Target>, Nobody> {
        match &origin.service {
            Some(service) => origin.recent.get("", || self.services.by_name(service)),
            None => origin.recent.get(host, || self.services.by_host(host)),
        }
    }

    async fn forward<B>(&self, request: Request<B>, origin: &Origin, target: &Arc<Target>) -> Response<Body>
    where
        B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + Unpin + 'static,
    {
        let began = Instant::now();
        let _under_way = Held::new(&target.golden.under_way);
        let (mut head, body) = request.into_parts();
        let (is_grpc, kind) = (is_grpc(&head.headers), grpc_content_type(&head.headers));
        // gRPC over HTTP/1.1 is none: its callers would not look for trailers there.
        let has_trailers = head.version == Version::HTTP_2;
        let story = self.seeing.begin(&mut head, target, (origin, began), || body.size_hint().exact());
        let (body, too_long) = Limited::new(body, self.max_body);
        let switch = Switch::take(&mut head);
        for_server(&mut head, origin);
        if let Some(switch) = &switch {
            switch.ask(&mut head.headers);
        }
        if let Some(trace) = story.as_ref().and_then(|story| story.trace()) {
            head.extensions.insert(trace.clone());
        }
        let sent = target.handle.send_movable(Request::from_parts(head, body)).await;
        let mut switched = None;
        let (mut answer, fault) = match sent {
            Ok(mut answer) if answer.status() == StatusCode::SWITCHING_PROTOCOLS => {
                switched = region_of(&answer).cloned();
                self.switch(&mut answer, switch, origin);
                (answer, None)
            }
            Ok(mut answer) => {
                for_program(&mut answer);
                if kind.is_some() {
                    Body::end_with_status(&mut answer, has_trailers);
                }
                (answer, None)
            }
            Err(_) if too_long.is_so() => (self.too_large(kind), None),
            Err(fault) => {
                self.faulted(&fault, origin, target);
                (answer::of_fault(&fault, kind), Some(fault))
            }
        };
        let region = switched.as_ref().or_else(|| region_of(&answer));
        target.golden.answers.answered(region, answer.status(), began.elapsed());
        let awaits_code = is_grpc && !target.golden.codes.read(answer.headers());
        if story.is_some() || awaits_code {
            watch(story, target, (&mut answer, fault.as_ref()), awaits_code);
        }
        answer
    }

    /// Counts a request that is for no service here.
    pub(super) fn count_nobody(&self, nobody: &Nobody) {
        count(match nobody {
            Nobody::TooMany { .. } => &self.services.refused,
            Nobody::NoHost | Nobody::Malformed(_) | Nobody::NoName(_) => &self.metrics.nobody,
        });
    }

    fn too_large(&self, grpc: Option<HeaderValue>) -> Response<Body> {
        count(&self.metrics.too_large);
        answer::of_too_large(self.max_body, grpc)
    }

    /// Counts a fault, and forgets a service that is none.
    fn faulted(&self, fault: &Fault, origin: &Origin, target: &Target) {
        count(&target.golden.faults);
        let unknown = matches!(fault.kind(), FaultKind::UnknownService | FaultKind::Unavailable);
        if unknown && origin.service.is_none() && !target.golden.was_answered() {
            self.services.forget(target.handle.name());
            // What was counted of it is forgotten as well.
            count(&self.metrics.nobody);
        }
    }

    pub(crate) fn services(&self) -> &Services {
        &self.services
    }

    pub(crate) fn tunnels(&self) -> &Tunnels {
        &self.tunnels
    }
}

/// Takes what a request says of the connection on which it came.
fn for_server(head: &mut Parts, origin: &Origin) {
    named::tell_host(head, origin);
    hops::strip_request(&mut head.headers);
    hops::tell_scheme(&mut head.headers, origin.over_tls);
    // Nothing of the connection it came on belongs to the call; its path does.
    let raw = head.extensions.remove::<RawPath>();
    head.extensions.clear();
    raw.map(|raw| head.extensions.insert(raw));
}

/// Takes what an answer says of the connection on which it came.
fn for_program(answer: &mut Response<Body>) {
    hops::strip_answer(answer.headers_mut());
    // How the server spoke says nothing of how the program does.
    *answer.version_mut() = Version::default();
}

/// Where the server is that answered, if one did.
#[inline]
fn region_of(answer: &Response<Body>) -> Option<&Region> {
    answer.body().answered_by().map(|(server, _)| &server.location.region)
}

/// Has an answer seen by those who want to.
fn watch(
    story: Option<Box<Story>>,
    target: &Arc<Target>,
    (answer, fault): (&mut Response<Body>, Option<&Fault>),
    awaits_code: bool,
) {
    match story {
        Some(story) => story.answered(answer, fault, awaits_code),
        None => answer.body_mut().watch(Arc::clone(target) as Arc<dyn Watch>),
    }
}
