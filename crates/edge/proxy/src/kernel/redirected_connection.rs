//! The origin of requests whose connections the eBPF programs redirected.

use std::{
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use fairmesh_calls::{Body, BoxError, forwarding::SentRequest};
use fairmesh_edge::{
    forward::{connection_info::ConnectionInfo, connection_origin::Origin, forwarder::Forwarder},
    http1::request_offload::Offload,
    metrics::requests::RequestMetrics,
    services::{Services, target::Target},
};
use http::{Request, Response};
use tokio::time::Instant;

use crate::{
    kernel::caller::{CallerLink, KernelCaller, UnlinkedCaller},
    passthrough::http2_passthrough::CapturedConnection,
};

/// A connection that eBPF programs redirected.
#[derive(Debug)]
pub(crate) struct RedirectedConnection {
    captured: CapturedConnection,
    caller: KernelCaller,
}

/// The requests of one connection that the kernel sends.
#[derive(Debug)]
pub(crate) enum KernelRequests {
    /// Not available yet, because the predecessor still holds the maps.
    Unlinked(Box<UnlinkedCaller>),
    Linked(Box<CallerLink>),
}

impl RedirectedConnection {
    pub(crate) fn new(captured: CapturedConnection, caller: KernelCaller) -> Self {
        Self { captured, caller }
    }
}

impl Origin for RedirectedConnection {
    type Offload = KernelRequests;

    const ADMITS_ALL: bool = CapturedConnection::ADMITS_ALL;

    fn admit<B>(
        &self,
        request: Request<B>,
        services: &Services,
    ) -> impl Future<Output = Result<Request<B>, Response<Body>>> + Send
    where
        B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    {
        self.captured.admit(request, services)
    }

    fn count_loop(&self, requests: &RequestMetrics) -> &'static str {
        self.captured.count_loop(requests)
    }

    fn take_offload(&self) -> Option<KernelRequests> {
        self.caller.take_unlinked().map(KernelRequests::Unlinked)
    }

    fn offloadable<B>(
        &self,
        request: &Request<B>,
        forwarder: &Forwarder,
        client_info: &ConnectionInfo,
    ) -> Option<Arc<Target>> {
        self.caller.target(request, forwarder, client_info)
    }

    fn offload(&self, target: &Target, forwarder: &Forwarder) -> impl Future<Output = ()> + Send {
        self.caller.publish(target, forwarder)
    }
}

impl Offload for KernelRequests {
    fn poll_request(
        &mut self,
        read: u64,
        has_input: bool,
        context: &mut Context<'_>,
    ) -> Poll<Option<Vec<u8>>> {
        // Checked before each request, because a predecessor may have held the maps when the connection was accepted.
        if let Self::Unlinked(caller) = self
            && let Some(link) = caller.link()
        {
            *self = Self::Linked(link);
        }
        let Self::Linked(link) = self else { return Poll::Ready(None) };
        if let Poll::Ready(request) = link.poll_request(context) {
            return Poll::Ready(Some(request));
        }
        if !has_input {
            link.note_idle(read);
            return Poll::Ready(None);
        }
        link.poll_none_in_flight(context).map(|()| None)
    }

    fn take_sent(&mut self) -> Option<SentRequest> {
        match self {
            Self::Unlinked(_) => None,
            Self::Linked(link) => link.current.take(),
        }
    }

    fn note_served(&mut self, read: u64, length: Option<u64>) {
        if let Self::Linked(link) = self {
            link.set_served(read, length);
        }
    }

    fn note_sent(&mut self, bytes: Option<usize>) {
        match self {
            Self::Unlinked(caller) => caller.note_sent(bytes),
            Self::Linked(link) => link.note_sent(bytes),
        }
    }

    fn last_completed(&self) -> Option<Instant> {
        match self {
            Self::Unlinked(_) => None,
            Self::Linked(link) => link.last_completed(),
        }
    }

    fn may_close(&mut self) -> bool {
        match self {
            Self::Unlinked(_) => true,
            Self::Linked(link) => link.may_close(),
        }
    }
}
