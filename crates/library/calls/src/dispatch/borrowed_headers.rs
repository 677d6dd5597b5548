//! A request in its read buffer, as the input of route conditions.

use fairmesh_headers::SpanContext;
use fairmesh_http::h1::BorrowedRequest;
use fairmesh_router::{Headers, RequestView};

/// Headers of a borrowed request as the input of route conditions, with or without its host.
pub(super) struct BorrowedHeaders<'a> {
    pub(super) request: &'a BorrowedRequest<'a>,
    pub(super) keeps_host: bool,
}

/// Returns the trace ID of a request.
pub(super) fn trace_of(request: &BorrowedRequest<'_>) -> Option<u128> {
    SpanContext::read_values(request.values("traceparent")).map(|span| span.trace)
}

impl Headers for BorrowedHeaders<'_> {
    fn get(&self, name: &str) -> Option<&[u8]> {
        self.has(name).then(|| self.request.values(name).next()).flatten()
    }

    fn any(&self, name: &str, sees: &mut dyn FnMut(&[u8]) -> bool) -> bool {
        self.has(name) && self.request.values(name).any(sees)
    }
}

impl BorrowedHeaders<'_> {
    /// Returns the request as input of route conditions, with this host.
    #[inline]
    pub(super) fn view<'b>(&'b self, host: &'b str) -> RequestView<'b, Self> {
        let BorrowedRequest { path, method, .. } = *self.request;
        RequestView { host, path, method, headers: self, grpc: false }
    }

    fn has(&self, name: &str) -> bool {
        self.keeps_host || name != "host"
    }
}
