//! One request and its response.

use std::{
    future::{Future, poll_fn},
    mem,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use fairmesh_calls::BoxError;
use fairmesh_http::{
    h1::{Decoder, ReceivedRequest, ResponseContext, write_informational},
    informational,
};
use http::{Request, Response};
use http_body::Body;
use tokio::io::{AsyncRead, AsyncWrite};

#[cfg(test)]
use crate::http1::connection::Mutation;
use crate::{
    http1::{
        connection::{Connection, READ_AHEAD, ReadState},
        connection_end::ConnectionError,
        request_body::{BodyReader, IncomingBody},
        request_handler::ClosesConnection,
        request_offload::Offload,
        upgraded_stream::OnUpgrade,
    },
    shutdown::Shutdown,
};

impl<R, W, O> Connection<R, W, O>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
    O: Offload,
{
    /// Handles a request; returns whether the connection may carry another.
    pub(crate) async fn exchange<A, F, B>(
        &mut self,
        received: ReceivedRequest,
        handle: A,
        shutdown: &Shutdown,
    ) -> Result<bool, ConnectionError>
    where
        A: FnOnce(Request<IncomingBody<R>>) -> F,
        F: Future<Output = Response<B>>,
        B: Body<Data = Bytes, Error: Into<BoxError>>,
    {
        self.unparsed = true;
        let ReceivedRequest { head, body, persistent, expects_continue, may_switch } = received;
        let asked = ResponseContext::of(&head);
        #[cfg(test)]
        let (body, persistent) = match self.mutation {
            Some(Mutation::BodyIsNextRequest) => (Decoder::absent(), persistent),
            Some(Mutation::NeverCloses) => (body, true),
            _ => (body, persistent),
        };
        let continue_wanted = expects_continue.then(Arc::<AtomicBool>::default);
        let upload = self.take_body(body, continue_wanted.clone());
        let mut request = head.map(|()| upload);
        if let Some(sent) = self.offload.as_mut().and_then(Offload::take_sent) {
            request.extensions_mut().insert(sent);
        }
        self.may_switch = may_switch;
        let pending_upgrade = may_switch.then(|| OnUpgrade::offer(request.extensions_mut()));
        let response = {
            let mut handling = pin!(handle(request));
            poll_fn(|context| {
                self.poll_response(handling.as_mut(), asked, continue_wanted.as_deref(), context)
            })
            .await?
        };
        self.may_switch = false;
        self.flush().await?;
        if let ReadState::Lent(returned) = &mut self.source
            && let Ok(reader) = returned.try_recv()
        {
            self.resume_after_body(reader);
        }
        self.set_upgrade(pending_upgrade, asked, response.status());
        // If the request has not been read to its end, the response announces that the connection closes.
        let is_read = matches!(self.source, ReadState::Owned(_)) || self.pending_upgrade.is_some();
        let closes = response.extensions().get::<ClosesConnection>().is_some();
        let persistent = persistent && is_read && !closes && !shutdown.is_started();
        self.respond(response, asked, persistent).await
    }

    /// The body of a request: already buffered, or a reader that takes the read half.
    fn take_body(&mut self, decoder: Decoder, continue_wanted: Option<Arc<AtomicBool>>) -> IncomingBody<R> {
        let ReadState::Owned(read_side) = &mut self.source else { return IncomingBody::Buffered(None) };
        if let Some(left) = decoder.left().and_then(|left| usize::try_from(left).ok())
            && left <= read_side.input.len()
        {
            let body = (left > 0).then(|| read_side.input.split_to(left).freeze());
            return IncomingBody::Buffered(body);
        }
        let ReadState::Owned(read_side) = mem::replace(&mut self.source, ReadState::Lost) else {
            return IncomingBody::Buffered(None);
        };
        let (upload, returned) =
            IncomingBody::streamed(BodyReader { read_side, decoder, failed: false }, continue_wanted);
        self.source = ReadState::Lent(returned);
        upload
    }

    /// Polls the handler and detects disconnects meanwhile. First sends informational responses; `100 Continue` is
    /// sent if the client waits for it and the body is read.
    fn poll_response<F: Future>(
        &mut self,
        handling: Pin<&mut F>,
        asked: ResponseContext,
        continue_wanted: Option<&AtomicBool>,
        context: &mut Context<'_>,
    ) -> Poll<Result<F::Output, ConnectionError>> {
        let (response, before) = informational::collect(|| handling.poll(context));
        if asked.allows_informational() {
            self.write_informational_responses(&before);
        }
        if let Poll::Ready(response) = response {
            return Poll::Ready(Ok(response));
        }
        if continue_wanted.is_some_and(|continue_wanted| continue_wanted.swap(false, Relaxed)) {
            self.output.text().extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n");
        }
        if !self.output.is_empty() {
            // Part of the write buffer may already have been sent.
            self.note_sent(None);
        }
        if let Poll::Ready(Err(error)) = self.output.poll_flush(&mut self.writer, context) {
            return Poll::Ready(Err(error.into()));
        }
        ready!(self.poll_disconnect(context));
        Poll::Ready(Err(ConnectionError::Disconnected))
    }

    /// Writes informational responses to the buffer. The next flush sends them.
    pub(crate) fn write_informational_responses(&mut self, responses: &[Response<()>]) {
        for response in responses {
            write_informational(self.output.text(), response.status(), response.headers());
        }
    }

    /// Ready when the client closes its side. Any data that arrives stays in the buffer.
    pub(crate) fn poll_disconnect(&mut self, context: &mut Context<'_>) -> Poll<()> {
        loop {
            match &mut self.source {
                ReadState::Owned(read_side) if read_side.input.len() < READ_AHEAD + self.forwarded_len => {
                    match ready!(read_side.poll_read(0, context)) {
                        Ok(1..) => {}
                        // The client has sent everything for its tunnel, and waits for data from it.
                        Ok(0) if self.may_switch && !read_side.input.is_empty() => return Poll::Pending,
                        Ok(0) | Err(_) => return Poll::Ready(()),
                    }
                }
                ReadState::Lent(returned) => match ready!(Pin::new(returned).poll(context)) {
                    Ok(reader) => self.resume_after_body(reader),
                    Err(_) => self.source = ReadState::Lost,
                },
                ReadState::Owned(_) | ReadState::Unframed(_) | ReadState::Lost => return Poll::Pending,
            }
        }
    }

    /// Resumes reading after a body, and skips the part of the body that is buffered but unread.
    pub(crate) fn resume_after_body(&mut self, reader: BodyReader<R>) {
        let BodyReader { mut read_side, mut decoder, failed } = reader;
        while !failed && matches!(decoder.decode(&mut read_side.input), Ok(Some(_))) {}
        let ended = !failed && decoder.is_done();
        self.source = if ended { ReadState::Owned(read_side) } else { ReadState::Unframed(read_side) };
    }
}
