//! Handles the requests of an HTTP/1.1 connection. Messages that need no change and no observation take the
//! fast path.

use std::{ops::Range, sync::Arc, task::Context};

use fairmesh_calls::{
    Body, EndpointTarget,
    forwarding::{CallInfo, FastCall, SlowCall, try_fast},
};
use fairmesh_headers::{LOOP, is_mesh_header};
use fairmesh_http::h1::{BorrowedRequest, BorrowedResponse, MIN_READ, header_storage};
use fairmesh_metrics::known_method;
use http::{Request, Response};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::Instant,
};

use crate::{
    counter::GaugeGuard,
    forward::{
        connection_handler::ConnectionHandler,
        connection_info::ConnectionInfo,
        connection_origin::Origin,
        forwarder::Forwarder,
        header_rewrite::{prepare_request, prepare_response, server_region},
        loop_detection,
        mesh_boundary::Boundary,
    },
    http1::{
        connection::Connection, connection_end::ConnectionError, request_body::IncomingBody,
        request_handler::RequestHandler, request_offload::Offload,
    },
    services::target::Target,
    shutdown::Shutdown,
};

/// Maximum number of bytes behind a large body that are moved to the front of the buffer when the body is discarded.
const MAX_MOVED: usize = 4 * 1024;

const FORWARDED_PROTO: &str = "x-forwarded-proto";

/// A call that was started on the fast path, or continues on the slow path.
type StartedCall<'a> = Result<FastCall<'a>, Box<SlowCall<'a>>>;

/// Target and start time of a call.
struct CallStart<'a> {
    target: &'a Target,
    method: &'static str,
    began: Instant,
}

/// A started call with its target and the range of its body in the buffer.
struct Begun<'a> {
    call: StartedCall<'a>,
    target: &'a Arc<Target>,
    method: &'static str,
    /// The range of the request's body, which is the end of the request.
    body: Range<usize>,
}

impl<O: Origin> ConnectionHandler<O> {
    /// Starts a call for the first request in `input`. Returns `None` if the request does not qualify for the
    /// fast path or must be observed.
    #[inline]
    fn begin<'b>(
        &self,
        input: &[u8],
        target: &'b mut Option<Arc<Target>>,
        began: Instant,
    ) -> Option<Begun<'b>> {
        let Self { forwarder, client_info, .. } = self;
        if !O::ADMITS_ALL {
            return None;
        }
        let added = added_fields(client_info.over_tls);
        let mut room = header_storage();
        let at_boundary = client_info.boundary.is_some();
        let is_reserved = |name: &str| is_mesh_header(name) || (at_boundary && Boundary::is_claim(name));
        let request = BorrowedRequest::read(input, &mut room, is_reserved)?;
        client_info.permit.note_request();
        let request = with_added(request, client_info.over_tls, &added)?;
        let target = &*target.insert(forwarder.target_of(request.host, client_info).ok()?);
        if request.body.len() as u64 > forwarder.max_body || forwarder.observer.may_observe(target, began) {
            return None;
        }
        let call = try_fast(&target.handle, &request, client_info.service.is_some(), began)?;
        let body = request.length - request.body.len()..request.length;
        Some(Begun { call, target, method: known_method(request.method), body })
    }
}

/// Headers that the proxy adds to each request: its own identity for loop detection, and the client's scheme.
fn added_fields(over_tls: bool) -> [(&'static str, &'static str); 2] {
    [(LOOP, loop_detection::identity()), (FORWARDED_PROTO, if over_tls { "https" } else { "http" })]
}

/// Has the effect of [`loop_detection::mark`] and
/// [`hop_by_hop::set_forwarded_proto`](super::hop_by_hop::set_forwarded_proto). `None` if a header would have to be
/// removed, or if the request has passed this proxy before.
fn with_added<'a>(
    request: BorrowedRequest<'a>,
    over_tls: bool,
    added: &'a [(&'static str, &'static str); 2],
) -> Option<BorrowedRequest<'a>> {
    if loop_detection::passes(request.values(LOOP)) > 0 {
        return None;
    }
    let has_proto = request.values(FORWARDED_PROTO).next().is_some();
    match (over_tls, has_proto) {
        (true, true) => None,
        (false, true) => Some(request.with(&added[..1])),
        (_, false) => Some(request.with(added)),
    }
}

impl<R: AsyncRead + Unpin + Send + 'static, O: Origin> RequestHandler<R> for ConnectionHandler<O> {
    type Body = Body;

    async fn handle(&self, request: Request<IncomingBody<R>>) -> Response<Body> {
        let Self { forwarder, client_info, origin } = self;
        if let Some(target) = origin.offloadable(&request, forwarder, client_info) {
            origin.offload(&target, forwarder).await;
        }
        forwarder.handle(request, client_info, origin).await
    }

    fn has_fast_path(&self) -> bool {
        O::ADMITS_ALL && !self.forwarder.observer.observes_all()
    }

    async fn try_fast_path<W, P>(
        &self,
        connection: &mut Connection<R, W, P>,
        shutdown: &Shutdown,
    ) -> Result<Option<bool>, ConnectionError>
    where
        W: AsyncWrite + Unpin,
        P: Offload,
    {
        let (began, mut target) = (Instant::now(), None);
        let Some(begun) = self.begin(connection.input(), &mut target, began) else { return Ok(None) };
        let Begun { call: mut begun, target, method, body } = begun;
        let apart = {
            let _in_flight = GaugeGuard::new(&target.metrics.in_flight);
            // Borrowed in place: moving it to a second variable would enlarge the future of every connection.
            if let Ok(passage) = &mut begun {
                let length = body.end;
                let worthwhile = body.len() > MIN_READ && connection.input().len() - length <= MAX_MOVED;
                if worthwhile && passage.drop_body() {
                    connection.discard_body(body);
                }
                let route_backend = passage.route_backend();
                let hidden = self.client_info.boundary.map_or(&[][..], Boundary::hidden_fields);
                let forwarded = connection.forward(length, |mut reply, context| {
                    let take = |response: &BorrowedResponse<'_>,
                                server: &EndpointTarget,
                                context: &mut Context<'_>| {
                        let closes = shutdown.is_started();
                        let region = Some(&server.location.region);
                        let outcome = (method, response.status);
                        target.metrics.record_response(route_backend, region, outcome, began.elapsed());
                        let response = &response.hiding(hidden);
                        (!closes, reply.send(response, closes, context))
                    };
                    passage.poll(take, context)
                });
                if let Some((persistent, sent)) = forwarded.await? {
                    // The server's part of the call is over, however long the client takes to read.
                    if let Ok(passage) = begun {
                        passage.end();
                    }
                    connection.finish_response(sent?, length).await?;
                    return Ok(Some(persistent));
                }
            }
            begun.map_or_else(|apart| *apart, FastCall::into_slow)
        };
        let (forwarder, client_info, call) =
            (&self.forwarder, &self.client_info, CallStart { target, method, began });
        let handle = |request| forwarder.forward_slow(request, client_info, &call, apart);
        Box::pin(connection.parse_and_handle(handle, shutdown)).await.map(Some)
    }
}

impl Forwarder {
    /// Continues a call of the fast path on the slow path.
    async fn forward_slow<R>(
        &self,
        request: Request<IncomingBody<R>>,
        client_info: &ConnectionInfo,
        call: &CallStart<'_>,
        apart: SlowCall<'_>,
    ) -> Response<Body>
    where
        R: AsyncRead + Unpin + Send + 'static,
    {
        let CallStart { target, method, began } = *call;
        let _in_flight = GaugeGuard::new(&target.metrics.in_flight);
        let (mut head, body) = request.into_parts();
        prepare_request(&mut head, client_info);
        let call_info = CallInfo::default();
        let mut response = match apart.send(Request::from_parts(head, body), &call_info).await {
            Ok(mut response) => {
                prepare_response(&mut response);
                response
            }
            Err(fault) => {
                let fault = self.with_zone_hint(fault, client_info, target);
                self.record_fault(&fault, client_info, target);
                client_info.fault_response(&fault, target, None)
            }
        };
        let region = server_region(&response);
        let outcome = (method, response.status());
        target.metrics.record_response(call_info.route_backend(), region, outcome, began.elapsed());
        client_info.strip_response(&mut response);
        response
    }
}
