//! The body of a request, on its way from the program to whoever answers.

use std::{
    io, mem,
    ops::Range,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
};

use bytes::{Buf as _, Bytes};
use fairmesh_client::BoxError;
use fairmesh_http::h1::{Decoder, MIN_READ, Piece, ReadBuffer, ReceivedRequest, nearly_complete_request};
use http_body::{Body, Frame, SizeHint};
use tokio::{
    io::AsyncRead,
    sync::oneshot::{self, Receiver, Sender},
};

/// What the head of a request may well need, besides its body.
const HEAD: usize = 1024;
/// The longest body that is awaited where the connection is read, and not lent.
const MOST_WHOLE: usize = 64 * 1024;

/// The half of a connection that is read.
#[derive(Debug)]
pub(super) struct Reading<R> {
    pub(super) io: R,
    /// What came and belongs to nothing yet.
    pub(super) input: ReadBuffer,
    /// The size of the last request, where it was large: the next one may be alike.
    expected: usize,
    /// The length of a request that has begun to come, where the rest of it is waited for.
    whole: Option<usize>,
    /// How much of the first request is gone, the end of it.
    forgotten: usize,
}

impl<R> Reading<R> {
    pub(super) fn new(io: R) -> Self {
        Self { io, input: ReadBuffer::default(), expected: 0, whole: None, forgotten: 0 }
    }
}

impl<R: AsyncRead + Unpin> Reading<R> {
    /// Reads what comes, of which so much is due; 0 where the program ended its side.
    pub(super) fn poll_read(&mut self, due: usize, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        match ready!(self.input.poll_read(&mut self.io, due, context)) {
            // TLS without a farewell: whether what was said is whole, HTTP/1.1 says itself.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Poll::Ready(Ok(0)),
            read => Poll::Ready(read),
        }
    }

    /// Reads what comes of a head. One that begins gets as much memory as there ever is for heads, which is nearly always
    /// that of the head before, or as a whole request is expected to have: one that were cut in two would cost a second read.
    pub(super) fn poll_head(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let due = match self.whole {
            Some(whole) => whole.saturating_sub(self.input.len()),
            None if self.input.is_empty() => self.expected.max(MIN_READ - 1),
            None => 0,
        };
        self.poll_read(due, context)
    }

    /// Whether what came is most of a request that is large and need not be taken apart: its sender is about to send the rest,
    /// which were otherwise sent on by itself.
    pub(super) fn is_nearly_whole(&mut self) -> bool {
        if self.whole.is_none() {
            self.whole = nearly_complete_request(&self.input, fairmesh_headers::is_mesh_header);
        }
        self.whole.is_some_and(|whole| self.input.len() < whole)
    }

    /// The first request is looked at, whole or not.
    pub(super) fn begun(&mut self) {
        self.whole = None;
    }

    /// Forgets the body of the first request, which lies there and ends it.
    pub(super) fn forget(&mut self, body: Range<usize>) {
        self.forgotten = body.len();
        self.input.copy_within(body.end.., body.start);
        let left = self.input.len() - body.len();
        self.input.truncate(left);
        self.input.release();
    }

    /// How much lies here of the first request, which has this length.
    pub(super) fn lies(&self, length: usize) -> usize {
        length - self.forgotten
    }

    /// The first request as it was read, with no body where that was forgotten.
    pub(super) fn without_forgotten(&mut self, received: ReceivedRequest) -> ReceivedRequest {
        match mem::take(&mut self.forgotten) {
            0 => received,
            _ => ReceivedRequest { body: Decoder::absent(), ..received },
        }
    }

    /// Takes the first request out of what came, which has this length.
    pub(super) fn pass_over(&mut self, length: usize) {
        let lies = self.lies(length);
        self.forgotten = 0;
        // Emptied, memory can be read into from its beginning.
        if lies == self.input.len() {
            self.input.clear()
        } else {
            self.input.advance(lies)
        }
        self.expected = if length > MIN_READ { length } else { 0 };
    }

    /// Reads what has come of a body that is not long, so that it need not be lent to whoever answers.
    pub(super) fn complete(&mut self, body: &Decoder, context: &mut Context<'_>) {
        let Some(left) = body.left().and_then(|left| usize::try_from(left).ok()) else { return };
        self.expected = if left > MIN_READ { left.saturating_add(HEAD) } else { 0 };
        while left <= MOST_WHOLE && self.input.len() < left {
            let due = left - self.input.len();
            // Whoever reads on learns of the end, and of what broke.
            if !matches!(self.poll_read(due, context), Poll::Ready(Ok(1..))) {
                break;
            }
        }
    }
}

/// The body of a request.
#[derive(Debug)]
pub(crate) enum Upload<R> {
    /// It came with its head; `None` where there is none, or it was read.
    Whole(Option<Bytes>),
    /// It is read from the connection as its reader asks for it.
    Rest(Rest<R>),
}

/// What is to come of a body. It holds what reads the connection, and gives it back at its end or when it is dropped: no
/// lock is needed, since at any time one of the two reads.
#[derive(Debug)]
pub(crate) struct Rest<R> {
    lent: Option<(Lent<R>, Sender<Lent<R>>)>,
    /// Set when the body is first asked for, where the program waits for that.
    wanted: Option<Arc<AtomicBool>>,
}

/// What reads a connection, in the middle of a body or at its end.
#[derive(Debug)]
pub(super) struct Lent<R> {
    pub(super) reading: Reading<R>,
    pub(super) decoder: Decoder,
    /// The body broke off, or was no body: what follows is nothing that can be told.
    pub(super) broken: bool,
}

impl<R: AsyncRead + Unpin> Upload<R> {
    /// A body that is to be read, and who gets back what reads it.
    pub(super) fn rest(lent: Lent<R>, wanted: Option<Arc<AtomicBool>>) -> (Self, Receiver<Lent<R>>) {
        let (back, returned) = oneshot::channel();
        (Self::Rest(Rest { lent: Some((lent, back)), wanted }), returned)
    }
}

impl<R: AsyncRead + Unpin> Rest<R> {
    fn poll_frame(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Some(wanted) = self.wanted.take() {
            wanted.store(true, Relaxed);
        }
        let Some((lent, _)) = &mut self.lent else { return Poll::Ready(None) };
        let frame = ready!(lent.poll_frame(context));
        lent.broken = matches!(frame, Some(Err(_)));
        if lent.broken || lent.decoder.is_done() {
            self.give_back();
        }
        Poll::Ready(frame)
    }

    fn left(&self) -> Option<u64> {
        self.lent.as_ref().map_or(Some(0), |(lent, _)| lent.decoder.left())
    }
}

impl<R: AsyncRead + Unpin> Lent<R> {
    fn poll_frame(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let Self { reading, decoder, .. } = self;
        loop {
            match decoder.decode(&mut reading.input)? {
                Some(Piece::Data(data)) => return Poll::Ready(Some(Ok(Frame::data(data)))),
                Some(Piece::Trailers(trailers)) => return Poll::Ready(Some(Ok(Frame::trailers(trailers)))),
                None if decoder.is_done() => return Poll::Ready(None),
                None => {}
            }
            let due = usize::try_from(decoder.due()).unwrap_or(usize::MAX);
            if ready!(reading.poll_read(due, context))? == 0 {
                let cut = "the program ended the connection in the middle of its request";
                return Poll::Ready(Some(Err(io::Error::new(io::ErrorKind::UnexpectedEof, cut).into())));
            }
        }
    }
}

impl<R> Rest<R> {
    fn give_back(&mut self) {
        if let Some((lent, back)) = self.lent.take() {
            // Nobody takes it where the connection has ended.
            let _ = back.send(lent);
        }
    }
}

impl<R> Drop for Rest<R> {
    fn drop(&mut self) {
        self.give_back();
    }
}

impl<R: AsyncRead + Unpin> Body for Upload<R> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match &mut *self {
            Self::Whole(body) => Poll::Ready(body.take().map(|body| Ok(Frame::data(body)))),
            Self::Rest(rest) => rest.poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(body) => body.is_none(),
            Self::Rest(rest) => rest.lent.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(body) => SizeHint::with_exact(body.as_ref().map_or(0, |body| body.len() as u64)),
            Self::Rest(rest) => rest.left().map_or_else(SizeHint::new, SizeHint::with_exact),
        }
    }
}
