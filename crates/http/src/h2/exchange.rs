//! One request answered, whatever becomes of it.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, header};
use http_body::Body;
use tokio::time::{Sleep, sleep};

use crate::informational;

use super::{
    Came, RequestBody, ResetReason, Responder,
    saying::Saying,
    session::Rest,
    tunnel::{Begins, Switch},
};

/// How long the rest of a request may take that nobody reads, once it is answered.
const PATIENCE: Duration = Duration::from_secs(1);

/// Asks for an answer, and says it as the program takes it. Done when the stream has ended.
#[derive(Debug)]
pub(super) struct Exchange<F, B> {
    state: State<F, B>,
    /// Until the stream has ended, or is a tunnel's.
    responder: Option<Responder>,
    tunnel: Option<Begins>,
}

#[derive(Debug)]
enum State<F, B> {
    Making(F),
    Saying(Saying<B>),
    /// All is said, and the request may not be over.
    Said,
    /// Nobody reads what still comes.
    Waiting(Pin<Box<Sleep>>),
}

impl<F, B> Exchange<F, B>
where
    F: Future<Output = Response<B>> + Unpin,
    B: Body<Data = Bytes> + Unpin,
{
    pub(super) fn new(came: Came, answer: impl FnOnce(Request<RequestBody>) -> F) -> Self {
        let Came { mut request, responder } = came;
        let tunnel = (request.method() == Method::CONNECT).then(|| Switch::begin(&mut request));
        Self { state: State::Making(answer(request)), responder: Some(responder), tunnel }
    }

    /// What comes after the head of an answer.
    fn head(&mut self, answer: Response<B>) -> State<F, B> {
        let Some(responder) = &mut self.responder else { return State::Said };
        let (mut head, body) = answer.into_parts();
        let tunnel = self.tunnel.take().filter(|tunnel| head.status.is_success() && tunnel.is_wanted());
        let is_tunnel = tunnel.is_some();
        let ends = !is_tunnel && body.is_end_stream();
        if !ends
            && !is_tunnel
            && let Some(length) = body.size_hint().exact()
            && !head.headers.contains_key(header::CONTENT_LENGTH)
        {
            head.headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
        }
        responder.head(Response::from_parts(head, ()), ends);
        if let (Some(tunnel), Some(responder)) = (tunnel, self.responder.take_if(|_| is_tunnel)) {
            tunnel.begin(responder);
            return State::Said;
        }
        match ends {
            true => State::Said,
            false => State::Saying(Saying::new(body)),
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
                State::Making(making) => {
                    if responder.poll_gone(context).is_ready() {
                        return Poll::Ready(());
                    }
                    let (answer, before) = informational::during(|| Pin::new(making).poll(context));
                    for response in before {
                        responder.head(response, false);
                    }
                    let answer = ready!(answer);
                    this.head(answer)
                }
                State::Saying(saying) => {
                    if responder.poll_gone(context).is_ready() {
                        return Poll::Ready(());
                    }
                    if let Err(error) = ready!(responder.poll_say(saying, context)) {
                        responder.reset(error.reset_reason());
                        return Poll::Ready(());
                    }
                    State::Said
                }
                State::Said => match ready!(responder.poll_rest(context)) {
                    Rest::Nothing => return Poll::Ready(()),
                    Rest::Unread => State::Waiting(Box::pin(sleep(PATIENCE))),
                },
                State::Waiting(patience) => {
                    if patience.as_mut().poll(context).is_pending() {
                        ready!(responder.poll_wasted(context));
                    }
                    return Poll::Ready(());
                }
            };
        }
    }
}
