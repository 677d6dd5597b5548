//! Reports a request when its response has ended: access log and spans.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use bytes::Bytes;
use fairmesh_calls::{
    ServiceName,
    forwarding::{BodyEnd, BodyObserver},
};
use fairmesh_headers::GRPC_STATUS;
use fairmesh_metrics::TraceExemplar;
use http::{HeaderMap, header::CONTENT_LENGTH};
use http_body::Frame;

use crate::{
    observe::{
        access_log::entry::AccessLogEntry,
        observer::{RequestObserver, unix_time},
        request_info::{CompletedRequest, RequestInfo, RequestOutcome},
        spans::ActiveSpan,
    },
    services::target::GrpcStatusWatch,
};

/// An observed request.
#[derive(Debug)]
pub(crate) struct ObservedRequest {
    pub(crate) observer: Arc<RequestObserver>,
    pub(crate) service: ServiceName,
    pub(crate) request: RequestInfo,
    pub(crate) span: Option<ActiveSpan>,
}

impl ObservedRequest {
    /// The exported span, which metrics link to as an exemplar.
    pub(crate) fn exemplar(&self) -> Option<TraceExemplar> {
        let own = self.span.as_ref()?.own;
        Some(TraceExemplar { trace: own.trace, span: own.span, at: unix_time() })
    }
}

/// Follows a response to its end.
#[derive(Debug)]
pub(crate) struct CompletionWatch {
    pub(crate) observed: ObservedRequest,
    pub(crate) outcome: RequestOutcome,
    pub(crate) is_logged: bool,
    /// Counts the gRPC status, if it is in the trailers.
    pub(crate) status_watch: Option<GrpcStatusWatch>,
    pub(crate) grpc_status: OnceLock<u16>,
    pub(crate) bytes_out: AtomicU64,
    /// The announced length of the response body.
    pub(crate) content_length: Option<u64>,
}

impl CompletionWatch {
    pub(crate) fn new(
        observed: ObservedRequest,
        outcome: RequestOutcome,
        is_logged: bool,
        status_watch: Option<GrpcStatusWatch>,
        headers: &HeaderMap,
    ) -> Self {
        let content_length =
            headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
        let (grpc_status, bytes_out) = (OnceLock::new(), AtomicU64::new(0));
        let ending =
            Self { observed, outcome, is_logged, status_watch, grpc_status, bytes_out, content_length };
        ending.read(headers);
        ending
    }

    fn read(&self, headers: &HeaderMap) {
        if let Some(grpc_status) =
            headers.get(GRPC_STATUS).and_then(|grpc_status| grpc_status.to_str().ok()?.parse().ok())
        {
            // A repeated status is ignored.
            let _ = self.grpc_status.set(grpc_status);
        }
    }
}

impl BodyObserver for CompletionWatch {
    fn frame(&self, frame: &Frame<Bytes>) {
        if let Some(data) = frame.data_ref() {
            self.bytes_out.fetch_add(data.len() as u64, Relaxed);
        }
        if let Some(trailers) = frame.trailers_ref() {
            self.read(trailers);
            if let Some(watch) = &self.status_watch {
                watch.frame(frame);
            }
        }
    }

    fn ended(&self, end: BodyEnd) {
        let Self { observed, outcome, .. } = self;
        let bytes_out = self.bytes_out.load(Relaxed);
        // A client that reads `content-length` bytes does not wait for the end of the body.
        let end = if end == BodyEnd::Cancelled && self.content_length == Some(bytes_out) {
            BodyEnd::Complete
        } else {
            end
        };
        if let Some(watch) = &self.status_watch {
            watch.ended(end);
        }
        let completed = CompletedRequest {
            service: observed.service.to_string(),
            outcome,
            grpc_status: self.grpc_status.get().copied(),
            bytes_out,
            end,
            took: observed.request.began.elapsed(),
        };
        let trace = observed.span.as_ref().map(|span| span.own).or(observed.request.context);
        let (observer, name) = (&observed.observer, &observed.service);
        let is_tapped = observer.taps.wants(name);
        if self.is_logged || is_tapped {
            let entry = AccessLogEntry::of(&observed.request, &completed, trace);
            if is_tapped {
                observer.taps.offer(name, &entry);
            }
            if self.is_logged {
                observer.log(entry);
            }
        }
        if let (Some(span), Some(tracer)) = (&observed.span, &observed.observer.tracer) {
            tracer.export(span, &observed.request, &completed);
        }
    }
}
