//! Records load reports in responses.

use fairmesh_connections::EndpointPool;
use fairmesh_headers::{LOAD, LOAD_BIN, LoadReport, load_from_binary, load_from_text};
use fairmesh_http::h1::BorrowedResponse;
use fairmesh_model::Protocol;
use http::HeaderMap;

use crate::{call::Clock, observe::count};

/// Records the load reports of one endpoint.
#[derive(Clone, Copy)]
pub(crate) struct LoadRecorder<'a> {
    pub(crate) pool: &'a EndpointPool,
    pub(crate) clock: Clock,
}

impl LoadRecorder<'_> {
    /// Records the report in the headers of a response. For a gRPC response with a body, the report is in the
    /// trailers instead. `succeeded` means that the headers report no failure.
    pub(crate) fn record_headers(self, headers: &HeaderMap, has_grpc_status: bool, succeeded: bool) {
        let target = self.pool.target();
        let metric = target.metric.as_deref();
        let load = match target.protocol {
            _ if has_grpc_status => {
                headers.get(&LOAD_BIN).map(|value| load_from_binary(value.as_bytes(), metric))
            }
            Protocol::Grpc => None,
            Protocol::Http1 | Protocol::Http2 => {
                headers.get(&LOAD).map(|value| load_from_text(value.as_bytes(), metric))
            }
        };
        self.record(load, succeeded);
    }

    /// Records the report in the trailers of a response. `succeeded` means that they report no failure.
    pub(crate) fn record_trailers(self, trailers: &HeaderMap, succeeded: bool) {
        let metric = self.pool.target().metric.as_deref();
        let load = trailers.get(&LOAD_BIN).map(|value| load_from_binary(value.as_bytes(), metric));
        self.record(load, succeeded);
    }

    /// Records the report in a borrowed response.
    #[inline]
    pub(crate) fn record_borrowed(self, response: &BorrowedResponse<'_>) {
        if self.pool.target().protocol == Protocol::Http1
            && let Some(value) = response.value(&LOAD)
        {
            self.record_text(value);
        }
    }

    /// Records the report of a successful HTTP/1.1 response from the value of its header.
    #[inline]
    pub(crate) fn record_text(self, value: &[u8]) {
        let metric = self.pool.target().metric.as_deref();
        self.record(Some(load_from_text(value, metric)), true);
    }

    fn record(self, load: Option<Option<LoadReport>>, succeeded: bool) {
        let Self { pool, clock } = self;
        match load {
            None => {}
            Some(None) => count(&pool.counters().reports_ignored),
            Some(Some(load)) if succeeded => pool.endpoint().record_report(load, clock.now()),
            Some(Some(load)) => pool.endpoint().record_unrewarded_report(load, clock.now()),
        }
    }
}
