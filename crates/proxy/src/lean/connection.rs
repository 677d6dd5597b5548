//! One connection: what is read of it, and by whom.

mod end;
mod plain;
mod reply;

use std::{
    future::{Future, poll_fn},
    mem,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use fairmesh_client::BoxError;
use fairmesh_http::{
    h1::{
        Decoder, REMAINDER_WAIT, ReceivedRequest, RequestError, RequestReader, ResponseContext, WriteBuffer,
        write_informational,
    },
    informational,
};
use http::{Request, Response, StatusCode};
use http_body::Body;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::oneshot::Receiver,
    time::{Instant, Sleep, sleep, timeout},
};

use super::{
    Broken,
    date::Date,
    switch::{Begins, Switch},
    upload::{Lent, Reading, Upload},
};
use crate::stopping::Stopping;

/// How much of later requests is read while one is answered.
const AHEAD: usize = 64 * 1024;
/// How long a connection is read after its last answer where its program may still be sending: closed at once, the system
/// would reset it, and take the answer away that was not read yet.
const LINGER: Duration = Duration::from_secs(1);

/// A connection of a program.
pub(crate) struct Connection<R, W> {
    source: Source<R>,
    requests: RequestReader,
    /// Whether nothing that came of the next request was looked at.
    fresh: bool,
    /// Until when the rest of a request is waited for, most of which has come.
    rest_by: Option<Instant>,
    /// How much of what came belongs to the request that is being passed on.
    passing: usize,
    writer: W,
    output: WriteBuffer,
    /// Whether what came after the request that waits for its answer may be something else than messages.
    may_switch: bool,
    /// Who takes the connection after the answer that is being sent.
    begins: Option<Begins>,
    date: Date,
    patience: Duration,
    /// Until when the program may take for what it is to do next.
    due: Instant,
    /// Rings when that is looked at again. It is not set anew for each request: most end long before.
    alarm: Pin<Box<Sleep>>,
    #[cfg(test)]
    planted: Option<Planted>,
}

/// A mistake, for a test that must find it.
#[cfg(test)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Planted {
    BodyIsNextRequest,
    NeverCloses,
    NoChunks,
    OneMessageARead,
    NoTail,
}

/// Who reads the connection.
enum Source<R> {
    Here(Reading<R>),
    /// The body of the request that is being answered.
    Lent(Receiver<Lent<R>>),
    /// Nobody any more: nothing after the request can be told from its body.
    Unread(Reading<R>),
    /// Nobody: it was lost with the body.
    Lost,
}

/// What a program does next.
pub(super) enum Next {
    /// It has begun to send a request, of which nothing was looked at; said once of each.
    Begun,
    /// Boxed, so that a connection that idles keeps no room for it. Plain requests, which are most, do not come here.
    Request(Box<ReceivedRequest>),
    Refused(StatusCode, &'static str),
    Http2,
    /// Nothing.
    Idle,
    Broken(Broken),
}

impl<R, W> Connection<R, W>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    pub(super) fn new(io: R, writer: W, patience: Duration) -> Self {
        Self {
            source: Source::Here(Reading::new(io)),
            requests: RequestReader::default(),
            fresh: true,
            rest_by: None,
            passing: 0,
            writer,
            output: WriteBuffer::default(),
            may_switch: false,
            begins: None,
            date: Date::new(),
            patience,
            due: Instant::now() + patience,
            alarm: Box::pin(sleep(patience)),
            #[cfg(test)]
            planted: None,
        }
    }

    #[cfg(test)]
    pub(super) fn plant(&mut self, planted: Option<Planted>) {
        self.planted = planted;
    }

    /// Waits for the head of the next request, and of one that `passes` without being taken apart for a moment for the rest where
    /// most of it has come.
    pub(super) async fn next(&mut self, passes: bool, stopping: &Stopping) -> Next {
        if self.fresh {
            self.due = Instant::now() + self.patience;
            self.rest_by = None;
        }
        let begun = poll_fn(|context| self.poll_next(passes, stopping, context)).await;
        begun.unwrap_or_else(Next::Broken)
    }

    fn poll_next(
        &mut self,
        passes: bool,
        stopping: &Stopping,
        context: &mut Context<'_>,
    ) -> Poll<Result<Next, Broken>> {
        let gives_up = passes && self.gives_up(context);
        let Source::Here(reading) = &mut self.source else { return Poll::Ready(Ok(Next::Idle)) };
        loop {
            let waits = passes && !gives_up && self.fresh && reading.is_nearly_whole();
            if !reading.input.is_empty() && !waits && mem::replace(&mut self.fresh, false) {
                reading.begun();
                return Poll::Ready(Ok(Next::Begun));
            }
            let read = if self.fresh { Ok(None) } else { self.requests.read(&mut reading.input) };
            match read {
                Ok(Some(received)) => {
                    reading.complete(&received.body, context);
                    #[cfg(test)]
                    if self.planted == Some(Planted::OneMessageARead)
                        && let Some(left) = received.body.left()
                    {
                        reading.input.truncate(left as usize);
                    }
                    return Poll::Ready(Ok(Next::Request(Box::new(received))));
                }
                Ok(None) => {}
                Err(RequestError::Http2) => return Poll::Ready(Ok(Next::Http2)),
                Err(RequestError::Refused { status, why }) => {
                    return Poll::Ready(Ok(Next::Refused(status, why)));
                }
            }
            match reading.poll_head(context)? {
                Poll::Ready(0) if reading.input.is_empty() => return Poll::Ready(Ok(Next::Idle)),
                Poll::Ready(0) => return Poll::Ready(Err(Broken::Short)),
                Poll::Ready(_) => {}
                Poll::Pending if waits && self.rest_by.is_none() => {
                    self.rest_by = Some(Instant::now() + REMAINDER_WAIT);
                    return self.poll_next(passes, stopping, context);
                }
                Poll::Pending => break,
            }
        }
        if reading.input.is_empty() && stopping.is_quiet() {
            return Poll::Ready(Ok(Next::Idle));
        }
        let begun = !reading.input.is_empty() || !self.requests.has_begun();
        match (self.is_late(context), begun) {
            (false, _) => Poll::Pending,
            (true, false) => Poll::Ready(Ok(Next::Idle)),
            (true, true) => Poll::Ready(Err(Broken::Late)),
        }
    }

    /// Has a request answered; whether the connection may carry another.
    pub(super) async fn exchange<A, F, B>(
        &mut self,
        received: ReceivedRequest,
        answer: A,
        stopping: &Stopping,
    ) -> Result<bool, Broken>
    where
        A: FnOnce(Request<Upload<R>>) -> F,
        F: Future<Output = Response<B>>,
        B: Body<Data = Bytes, Error: Into<BoxError>>,
    {
        self.fresh = true;
        let ReceivedRequest { head, body, persistent, expects_continue, may_switch } = received;
        let asked = ResponseContext::of(&head);
        #[cfg(test)]
        let (body, persistent) = match self.planted {
            Some(Planted::BodyIsNextRequest) => (Decoder::absent(), persistent),
            Some(Planted::NeverCloses) => (body, true),
            _ => (body, persistent),
        };
        let wanted = expects_continue.then(Arc::<AtomicBool>::default);
        let upload = self.lend(body, wanted.clone());
        let mut request = head.map(|()| upload);
        self.may_switch = may_switch;
        let begins = may_switch.then(|| Switch::offer(request.extensions_mut()));
        let response = {
            let mut answering = pin!(answer(request));
            poll_fn(|context| self.poll_answer(answering.as_mut(), asked, wanted.as_deref(), context)).await?
        };
        self.may_switch = false;
        self.flush().await?;
        if let Source::Lent(returned) = &mut self.source
            && let Ok(lent) = returned.try_recv()
        {
            self.take_back(lent);
        }
        self.switch(begins, asked, response.status());
        let unread = matches!(self.source, Source::Unread(_));
        let persistent = persistent && !unread && !stopping.is_told();
        Ok(self.reply(response, asked, persistent).await? && self.is_read().await)
    }

    /// The body of a request: what came with its head, or what reads the rest.
    fn lend(&mut self, decoder: Decoder, wanted: Option<Arc<AtomicBool>>) -> Upload<R> {
        let Source::Here(reading) = &mut self.source else { return Upload::Whole(None) };
        if let Some(left) = decoder.left().and_then(|left| usize::try_from(left).ok())
            && left <= reading.input.len()
        {
            let body = (left > 0).then(|| reading.input.split_to(left).freeze());
            return Upload::Whole(body);
        }
        let Source::Here(reading) = mem::replace(&mut self.source, Source::Lost) else {
            return Upload::Whole(None);
        };
        let (upload, returned) = Upload::rest(Lent { reading, decoder, broken: false }, wanted);
        self.source = Source::Lent(returned);
        upload
    }

    /// Waits for the answer, and for the program to give up. Sends informational responses before it, and tells the program to send the
    /// body, where it waits for that and the body is wanted.
    fn poll_answer<F: Future>(
        &mut self,
        answering: Pin<&mut F>,
        asked: ResponseContext,
        wanted: Option<&AtomicBool>,
        context: &mut Context<'_>,
    ) -> Poll<Result<F::Output, Broken>> {
        let (response, before) = informational::collect(|| answering.poll(context));
        if asked.allows_informational() {
            self.inform(&before);
        }
        if let Poll::Ready(response) = response {
            return Poll::Ready(Ok(response));
        }
        if wanted.is_some_and(|wanted| wanted.swap(false, Relaxed)) {
            self.output.text().extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n");
        }
        if let Poll::Ready(Err(error)) = self.output.poll_flush(&mut self.writer, context) {
            return Poll::Ready(Err(error.into()));
        }
        ready!(self.poll_gone(context));
        Poll::Ready(Err(Broken::Gone))
    }

    /// Writes informational responses, which are sent with the next flush.
    fn inform(&mut self, responses: &[Response<()>]) {
        for response in responses {
            write_informational(self.output.text(), response.status(), response.headers());
        }
    }

    /// Ready when the program has ended its side. What else it sends waits for its turn.
    fn poll_gone(&mut self, context: &mut Context<'_>) -> Poll<()> {
        loop {
            match &mut self.source {
                Source::Here(reading) if reading.input.len() < AHEAD + self.passing => {
                    match ready!(reading.poll_read(0, context)) {
                        Ok(1..) => {}
                        // It has said all that it has to say in the tunnel, and waits for what it is told there.
                        Ok(0) if self.may_switch && !reading.input.is_empty() => return Poll::Pending,
                        Ok(0) | Err(_) => return Poll::Ready(()),
                    }
                }
                Source::Lent(returned) => match ready!(Pin::new(returned).poll(context)) {
                    Ok(lent) => self.take_back(lent),
                    Err(_) => self.source = Source::Lost,
                },
                Source::Here(_) | Source::Unread(_) | Source::Lost => return Poll::Pending,
            }
        }
    }

    /// Reads on after a body, of which what has come and nobody read is passed over.
    fn take_back(&mut self, lent: Lent<R>) {
        let Lent { mut reading, mut decoder, broken } = lent;
        while !broken && matches!(decoder.decode(&mut reading.input), Ok(Some(_))) {}
        let ended = !broken && decoder.is_done();
        self.source = if ended { Source::Here(reading) } else { Source::Unread(reading) };
    }

    /// Whether the request was read to its end, now that it is answered.
    async fn is_read(&mut self) -> bool {
        if let Source::Lent(returned) = &mut self.source
            && let Ok(Ok(lent)) = timeout(LINGER, returned).await
        {
            self.take_back(lent);
        }
        matches!(self.source, Source::Here(_))
    }

    /// Whether the program has taken too long.
    fn is_late(&mut self, context: &mut Context<'_>) -> bool {
        let due = self.due;
        self.has_rung(due, context)
    }

    /// Whether the rest of a request is waited for no longer: it is taken as it is.
    fn gives_up(&mut self, context: &mut Context<'_>) -> bool {
        let Some(by) = self.rest_by else { return false };
        if self.alarm.deadline() > by {
            self.alarm.as_mut().reset(by);
        }
        self.has_rung(by, context)
    }

    /// Whether it is `due`; the alarm may ring before.
    fn has_rung(&mut self, due: Instant, context: &mut Context<'_>) -> bool {
        while self.alarm.as_mut().poll(context).is_ready() {
            if due <= Instant::now() {
                return true;
            }
            self.alarm.as_mut().reset(due);
        }
        false
    }
}
