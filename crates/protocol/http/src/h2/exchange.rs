//! Serves one request until its stream is closed.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, header};
use http_body::Body;
use tokio::time::{Sleep, sleep, sleep_until};

use crate::{ResponseDeadline, informational};

use super::{
    IncomingRequest, Reason, RequestBody, ResetReason, Responder,
    body_sender::BodySender,
    session::RequestRemainder,
    tunnel::{PendingTunnel, TunnelStart},
};

/// Maximum time to discard the unread rest of a request after the response.
const DISCARD_TIMEOUT: Duration = Duration::from_secs(1);
/// Time after its deadline at which a response is reset if its body could not be polled. A body that can be polled
/// ends by itself, with the status of its protocol.
const CUT_AFTER: Duration = Duration::from_millis(50);

/// Calls the service and sends its response as flow control allows. Ready when the stream is closed.
#[derive(Debug)]
pub(super) struct Exchange<F, B> {
    state: State<F, B>,
    /// Sends the response; `None` once the stream is closed or belongs to a tunnel.
    responder: Option<Responder>,
    tunnel: Option<TunnelStart>,
}

#[derive(Debug)]
enum State<F, B> {
    Responding(F),
    /// The response is being sent. The timer resets it.
    Sending(BodySender<B>, Option<Pin<Box<Sleep>>>),
    /// The response is sent; the request may be incomplete.
    Sent,
    /// The rest of the request is being discarded, until this timer fires.
    Discarding(Pin<Box<Sleep>>),
}

impl<F, B> Exchange<F, B>
where
    F: Future<Output = Response<B>> + Unpin,
    B: Body<Data = Bytes> + Unpin,
{
    pub(super) fn new(incoming: IncomingRequest, service: impl FnOnce(Request<RequestBody>) -> F) -> Self {
        let IncomingRequest { mut request, responder } = incoming;
        let tunnel = (request.method() == Method::CONNECT).then(|| PendingTunnel::begin(&mut request));
        Self { state: State::Responding(service(request)), responder: Some(responder), tunnel }
    }

    /// Sends the headers of the response, and returns the next state.
    fn send_head(&mut self, response: Response<B>) -> State<F, B> {
        let Some(responder) = &mut self.responder else { return State::Sent };
        let (mut head, body) = response.into_parts();
        let tunnel = self.tunnel.take().filter(|tunnel| head.status.is_success() && tunnel.is_wanted());
        let is_tunnel = tunnel.is_some();
        let deadline = head.extensions.get::<ResponseDeadline>();
        let cut_at = deadline.map(|deadline| Box::pin(sleep_until(deadline.0 + CUT_AFTER)));
        let ends = !is_tunnel && body.is_end_stream();
        if !ends
            && !is_tunnel
            && let Some(length) = body.size_hint().exact()
            && !head.headers.contains_key(header::CONTENT_LENGTH)
        {
            head.headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
        }
        responder.send_headers(Response::from_parts(head, ()), ends);
        if let (Some(tunnel), Some(responder)) = (tunnel, self.responder.take_if(|_| is_tunnel)) {
            tunnel.begin(responder);
            return State::Sent;
        }
        match ends {
            true => State::Sent,
            false => State::Sending(BodySender::new(body), cut_at),
        }
    }
}

impl<F, B> Future for Exchange<F, B>
where
    F: Future<Output = Response<B>> + Unpin,
    B: Body<Data = Bytes, Error: ResetReason> + Unpin,
{
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        loop {
            let Some(responder) = &mut this.responder else { return Poll::Ready(()) };
            this.state = match &mut this.state {
                State::Responding(response) => {
                    if responder.poll_reset(context).is_ready() {
                        return Poll::Ready(());
                    }
                    let (response, early) = informational::collect(|| Pin::new(response).poll(context));
                    for response in early {
                        responder.send_headers(response, false);
                    }
                    let response = ready!(response);
                    this.send_head(response)
                }
                State::Sending(sender, cut_at) => {
                    if responder.poll_reset(context).is_ready() {
                        return Poll::Ready(());
                    }
                    match responder.poll_send_body(sender, context) {
                        Poll::Ready(Ok(())) => State::Sent,
                        Poll::Ready(Err(error)) => {
                            responder.reset(error.reset_reason());
                            return Poll::Ready(());
                        }
                        Poll::Pending => {
                            let Some(cut_at) = cut_at else { return Poll::Pending };
                            ready!(cut_at.as_mut().poll(context));
                            responder.reset(Reason::CANCEL);
                            return Poll::Ready(());
                        }
                    }
                }
                State::Sent => match ready!(responder.poll_remainder(context)) {
                    RequestRemainder::Done => return Poll::Ready(()),
                    RequestRemainder::Unread => State::Discarding(Box::pin(sleep(DISCARD_TIMEOUT))),
                },
                State::Discarding(timer) => {
                    if timer.as_mut().poll(context).is_pending() {
                        ready!(responder.poll_discarded(context));
                    }
                    return Poll::Ready(());
                }
            };
        }
    }
}
