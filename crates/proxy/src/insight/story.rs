//! One request that somebody wants to see.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use fairmesh_client::{
    Body, EndpointTarget, Fault, Step, Trace,
    observe::AttemptRecord,
    proxy_support::{BodyEnd, BodyObserver},
};
use fairmesh_headers::{SpanContext, is_grpc};
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, Uri, Version, header, request::Parts};
use tokio::time::Instant;

use super::{Seeing, ending::Ending};
use crate::{decision, service::Target, spans::Begun};

/// The longest path that is kept.
const LONGEST_PATH: usize = 1024;
/// The status of a request whose program gave up before it was answered, which nobody sees but here; nginx has it so.
const GIVEN_UP: u16 = 499;

/// What was asked.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) method: Method,
    uri: Uri,
    host: Option<HeaderValue>,
    pub(crate) version: Version,
    pub(crate) is_grpc: bool,
    pub(crate) caller: SocketAddr,
    /// The length of the body, where it was known beforehand.
    pub(crate) length: Option<u64>,
    /// The trace that its program has it in, where that can be read.
    pub(crate) context: Option<SpanContext>,
    pub(crate) began: Instant,
    /// The same, since 1970.
    pub(crate) time: Duration,
}

/// A request with what it takes to tell of it.
#[derive(Debug)]
pub(crate) struct Subject {
    pub(super) seeing: Arc<Seeing>,
    pub(super) target: Arc<Target>,
    pub(super) asked: Asked,
    pub(super) span: Option<Begun>,
}

/// What is seen of one request until its answer begins; one that ends before, since its program gave up, is told as that.
#[derive(Debug)]
pub(crate) struct Story {
    /// `None` once the answer has begun.
    pub(super) subject: Option<Subject>,
    pub(super) trace: Option<Trace>,
    /// Whether its program wants to be told.
    pub(super) tell: bool,
    /// Whether it is kept as the last one.
    pub(super) keep: bool,
}

/// What became of it.
#[derive(Debug)]
pub(crate) struct Answered {
    pub(crate) status: StatusCode,
    /// Why no server answered.
    pub(crate) fault: Option<&'static str>,
    pub(crate) words: Option<String>,
    /// Who did.
    pub(crate) server: Option<EndpointTarget>,
    pub(crate) tries: usize,
    /// To the head of the answer.
    pub(crate) took: Duration,
    pub(crate) tried: Vec<AttemptRecord>,
    pub(crate) reasons: Vec<Step>,
}

impl Asked {
    pub(super) fn new(
        head: &Parts,
        (caller, length): (SocketAddr, Option<u64>),
        (began, time): (Instant, Duration),
    ) -> Self {
        Self {
            method: head.method.clone(),
            uri: head.uri.clone(),
            host: head.headers.get(header::HOST).cloned(),
            version: head.version,
            is_grpc: is_grpc(&head.headers),
            caller,
            length,
            context: SpanContext::read(&head.headers),
            began,
            time,
        }
    }

    /// Its path, without the query, which may hold what is secret; what is too long is cut off.
    pub(crate) fn path(&self) -> &str {
        let path = self.uri.path();
        // A path may hold what is no ASCII, and is cut between characters.
        let end = (0..=LONGEST_PATH.min(path.len())).rev().find(|at| path.is_char_boundary(*at));
        &path[..end.unwrap_or(0)]
    }

    /// Which host was asked for, with its port.
    pub(crate) fn authority(&self) -> Option<&str> {
        let named = self.uri.authority().map(|authority| authority.as_str());
        named.or_else(|| self.host.as_ref()?.to_str().ok())
    }
}

impl Story {
    /// Where the library keeps what becomes of the tries.
    pub(crate) fn trace(&self) -> Option<&Trace> {
        self.trace.as_ref()
    }

    /// The answer begins: tells what can be told now, and the rest when it has ended. `awaits_code` where the status of a gRPC
    /// call is still to come.
    pub(crate) fn answered(
        mut self: Box<Self>,
        answer: &mut Response<Body>,
        fault: Option<&Fault>,
        awaits_code: bool,
    ) {
        let Some(subject) = self.subject.take() else { return };
        let answered = self.what_became(&subject.asked, answer, fault);
        if self.tell {
            let Answered { tried, tries, .. } = &answered;
            decision::tell(subject.target.handle.name(), tried, *tries, answer.headers_mut());
        }
        if let Some(lasts) = subject.seeing.lasts.as_ref().filter(|_| self.keep) {
            lasts.keep(&subject.target, &subject.asked, &answered);
        }
        let is_logged = subject.seeing.access.wants(answered.failed());
        let watch: Arc<dyn BodyObserver> = match is_logged || subject.span.is_some() {
            true => Arc::new(Ending::new(subject, answered, (is_logged, awaits_code), answer.headers())),
            false if awaits_code => subject.target,
            false => return,
        };
        answer.body_mut().observe(watch);
    }

    fn what_became(&self, asked: &Asked, answer: &Response<Body>, fault: Option<&Fault>) -> Answered {
        let took = asked.began.elapsed();
        let (tried, reasons) = self.tried(took);
        let server = answer.body().responder();
        // Of a connection that became a tunnel, the answer has nothing any more.
        let last = tried.last().filter(|tried| tried.outcome.is_ok()).map(|tried| &tried.endpoint);
        Answered {
            status: answer.status(),
            fault: fault.map(|fault| fault.kind().label()),
            words: fault.map(ToString::to_string),
            tries: server.map(|(_, tries)| tries).or(fault.map(Fault::attempts)).unwrap_or(tried.len()),
            server: server.map(|(target, _)| target).or(last).cloned(),
            took,
            tried,
            reasons,
        }
    }

    fn tried(&self, age: Duration) -> (Vec<AttemptRecord>, Vec<Step>) {
        let Some(trace) = &self.trace else { return Default::default() };
        let mut tried = trace.take();
        tried.extend(trace.take_unfinished(age));
        (tried, trace.take_reasons())
    }
}

impl Answered {
    fn failed(&self) -> bool {
        self.fault.is_some() || self.status.is_server_error()
    }
}

impl Drop for Story {
    fn drop(&mut self) {
        let Some(subject) = self.subject.take() else { return };
        let took = subject.asked.began.elapsed();
        let (tried, reasons) = self.tried(took);
        let answered = Answered {
            status: StatusCode::from_u16(GIVEN_UP).unwrap_or_default(),
            fault: Some("given_up"),
            words: Some("its program gave up before it was answered".into()),
            server: None,
            tries: tried.len(),
            took,
            tried,
            reasons,
        };
        if let Some(lasts) = subject.seeing.lasts.as_ref().filter(|_| self.keep) {
            lasts.keep(&subject.target, &subject.asked, &answered);
        }
        let is_logged = subject.seeing.access.wants(true);
        Ending::new(subject, answered, (is_logged, false), &HeaderMap::new()).ended(BodyEnd::Complete);
    }
}
