use std::task::{Context, Poll};

use fairmesh_listen::{BodyError, Framing, GuardedCall, ResponseBody, guard_request};
use futures_util::{TryFutureExt as _, future::MapOk};
use http::{Request, Response};
use http_body_util::BodyExt as _;
use tonic::{Code, Status, body::Body};
use tower_layer::Layer;
use tower_service::Service;

use super::Peer;
use crate::grpc_stubs::MAX_MESSAGE;

/// Prefixes of the messages with which tonic and prost report requests that they cannot decode.
const DECODE_ERRORS: [&str; 3] =
    ["failed to decode Protobuf message", "Unexpected EOF decoding stream", "protocol error: "];

/// Layer that bounds the time and memory of calls, and responds to malformed requests with `INVALID_ARGUMENT`.
///
/// It gets the connection from the [`Peer`] in a request's extensions, and inserts the
/// [`Identity`](fairmesh_model::Identity) and [`Waits`](super::Waits) for handlers.
#[derive(Clone, Copy, Debug, Default)]
pub struct CallGuard;

impl<S> Layer<S> for CallGuard {
    type Service = GuardedCalls<S>;

    fn layer(&self, inner: S) -> Self::Service {
        GuardedCalls { inner }
    }
}

/// Inner service wrapped by [`CallGuard`].
#[derive(Clone, Debug)]
pub struct GuardedCalls<S> {
    inner: S,
}

type GuardedResponse = Response<ResponseBody<Body>>;

impl<S> Service<Request<Body>> for GuardedCalls<S>
where
    S: Service<Request<Body>, Response = Response<Body>>,
{
    type Response = GuardedResponse;
    type Error = S::Error;
    type Future = MapOk<GuardedCall<S::Future>, fn(GuardedResponse) -> GuardedResponse>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let peer = request.extensions_mut().remove::<Option<Peer>>().flatten();
        let (request, guard) = match peer {
            None => (request, None),
            Some(Peer { identity, program, connection, without_certificate }) => {
                request.extensions_mut().insert(identity);
                if let Some(program) = program {
                    request.extensions_mut().insert(program);
                }
                if let Some(without) = without_certificate {
                    request.extensions_mut().insert(without);
                }
                let (mut request, guard) = guard_request(&connection, request, Framing::message(MAX_MESSAGE));
                request.extensions_mut().insert(guard.clone());
                (request.map(|body| Body::new(body.map_err(refused))), Some(guard))
            }
        };
        let named: fn(GuardedResponse) -> GuardedResponse = map_decode_errors;
        GuardedCall::new(self.inner.call(request), guard).map_ok(named)
    }
}

/// The status for a request body that ended early.
fn refused(error: BodyError) -> Status {
    let text = error.to_string();
    match error {
        BodyError::Timeout(_) => Status::deadline_exceeded(text),
        BodyError::NoMemory => Status::resource_exhausted(text),
        BodyError::ExtraMessage => Status::invalid_argument(text),
        BodyError::Transport(error) => Status::from_error(error),
    }
}

/// Maps decode errors to `INVALID_ARGUMENT`: a malformed request is the caller's fault, but tonic reports an internal
/// error.
fn map_decode_errors(response: GuardedResponse) -> GuardedResponse {
    let unreadable = response.extensions().get::<Status>().filter(|status| {
        status.code() == Code::Internal
            && DECODE_ERRORS.iter().any(|begin| status.message().starts_with(begin))
    });
    match unreadable {
        None => response,
        Some(status) => {
            let why = format!("the request cannot be read: {}", status.message());
            Status::invalid_argument(why).into_http()
        }
    }
}
