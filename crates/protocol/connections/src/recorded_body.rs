use std::{
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker, ready},
};

use bytes::Bytes;
use fairmesh_http::BoxError;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};

use super::request_body::{MAX_BUFFERED, UnbufferedBody};

/// Recorded pieces below this size, in bytes, are copied, since read buffers are larger.
const COPY_BELOW: usize = 16 * 1024;

/// Records the part of a body that is not ready yet while it is sent. A request that was not processed can then be sent
/// again, whether its body arrived in one piece or several.
///
/// The recording is bounded. Beyond the bound it is dropped, and the body can be sent only once. Recording ends when
/// this value is dropped.
pub(super) struct RecordedBody(Shared);

type Shared = Arc<Mutex<Recording>>;

struct Recording {
    source: UnbufferedBody,
    /// Frames taken from the source; `None` once they exceed the bound.
    frames: Option<Vec<RecordedFrame>>,
    /// Size of the recorded frames in bytes.
    length: usize,
    has_ended: bool,
    /// The source has failed, so the recording is not a complete body.
    has_failed: bool,
    /// Whether the recorded frames may be read again.
    is_repeatable: bool,
    /// Number of the current reader. Each attempt has its own reader, which ends the previous reader.
    reader: u32,
    /// Waker of the current reader while it waits for the source.
    waker: Option<Waker>,
}

#[derive(Clone)]
enum RecordedFrame {
    Data(Bytes),
    Trailers(HeaderMap),
}

/// Reads a recorded body from its beginning.
pub(super) struct RecordedReader {
    recording: Shared,
    number: u32,
    position: usize,
}

impl RecordedBody {
    /// Records the frames that are read from `source`. The first `buffered` bytes of the body are kept elsewhere.
    pub(super) fn new(source: UnbufferedBody, buffered: usize) -> Self {
        Self(Arc::new(Mutex::new(Recording {
            source,
            frames: Some(Vec::new()),
            length: buffered,
            has_ended: false,
            has_failed: false,
            is_repeatable: true,
            reader: 0,
            waker: None,
        })))
    }

    /// Whether everything read so far can be read again.
    pub(super) fn is_whole(&self) -> bool {
        let recording = lock(&self.0);
        recording.frames.is_some() && !recording.has_failed
    }

    /// Returns a reader from the beginning; `None` if the beginning is no longer available. The previous reader gets
    /// an error.
    pub(super) fn reader(&self) -> Option<RecordedReader> {
        let mut recording = lock(&self.0);
        recording.frames.as_ref().filter(|_| !recording.has_failed)?;
        recording.reader += 1;
        let number = recording.reader;
        let previous = recording.waker.take();
        drop(recording);
        // The source will wake only the new reader.
        previous.into_iter().for_each(Waker::wake);
        Some(RecordedReader { recording: Arc::clone(&self.0), number, position: 0 })
    }
}

impl Drop for RecordedBody {
    fn drop(&mut self) {
        // The last reader may still need the frames; it drops them once it has read them.
        lock(&self.0).is_repeatable = false;
    }
}

fn lock(recording: &Mutex<Recording>) -> MutexGuard<'_, Recording> {
    recording.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Recording {
    /// Takes the next frame from the source, for a reader that has read all recorded frames.
    fn poll_source(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if self.has_failed {
            return Poll::Ready(Some(Err("the body of the request has failed".into())));
        }
        if self.has_ended {
            return Poll::Ready(None);
        }
        let polled = self.source.as_mut().poll_frame(context);
        self.waker = polled.is_pending().then(|| context.waker().clone());
        let frame = ready!(polled).transpose();
        // A source may seem to end normally after its error.
        self.has_failed = frame.is_err();
        let frame = frame?;
        self.has_ended = frame.is_none();
        let Some(frame) = frame else { return Poll::Ready(None) };
        // The size of the record counts too, since a body may consist of many small frames.
        let length = size_of::<RecordedFrame>() + frame.data_ref().map_or(0, Bytes::len);
        self.length = self.length.saturating_add(length);
        if self.length > MAX_BUFFERED || !self.is_repeatable {
            self.frames = None;
        }
        if let Some(frames) = &mut self.frames {
            frames.extend(RecordedFrame::of(&frame));
        }
        Poll::Ready(Some(Ok(frame)))
    }
}

impl RecordedFrame {
    fn of(frame: &Frame<Bytes>) -> Option<Self> {
        // A small piece is copied, since it would otherwise keep its read buffer alive.
        let kept =
            |data: &Bytes| if data.len() < COPY_BELOW { Bytes::copy_from_slice(data) } else { data.clone() };
        let data = frame.data_ref().map(|data| Self::Data(kept(data)));
        data.or_else(|| frame.trailers_ref().map(|trailers| Self::Trailers(trailers.clone())))
    }
}

impl From<RecordedFrame> for Frame<Bytes> {
    fn from(frame: RecordedFrame) -> Self {
        match frame {
            RecordedFrame::Data(data) => Self::data(data),
            RecordedFrame::Trailers(trailers) => Self::trailers(trailers),
        }
    }
}

impl RecordedReader {
    /// Recorded frames that this reader has not read.
    fn unread<'a>(&self, recording: &'a Recording) -> &'a [RecordedFrame] {
        recording.frames.as_ref().and_then(|frames| frames.get(self.position..)).unwrap_or_default()
    }
}

impl Body for RecordedReader {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let shared = Arc::clone(&self.recording);
        let mut recording = lock(&shared);
        if recording.reader != self.number {
            return Poll::Ready(Some(Err("another attempt sends the body".into())));
        }
        let recorded = self.unread(&recording).first().cloned();
        let frame = match recorded {
            Some(frame) => Some(Ok(frame.into())),
            None => ready!(recording.poll_source(context)),
        };
        self.position += usize::from(frame.is_some());
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        let recording = lock(&self.recording);
        let has_ended = recording.has_ended || recording.source.is_end_stream();
        recording.reader == self.number
            && !recording.has_failed
            && has_ended
            && self.unread(&recording).is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        let recording = lock(&self.recording);
        let source = if recording.has_ended { SizeHint::with_exact(0) } else { recording.source.size_hint() };
        let (mut unread, mut has_trailers) = (0_u64, false);
        for frame in self.unread(&recording) {
            match frame {
                RecordedFrame::Data(data) => unread += data.len() as u64,
                RecordedFrame::Trailers(_) => has_trailers = true,
            }
        }
        let mut hint = SizeHint::new();
        hint.set_lower(source.lower().saturating_add(unread));
        // In HTTP/1.1, trailers need a chunked body, so no length may be declared.
        if !has_trailers
            && !recording.has_failed
            && let Some(upper) = source.upper().and_then(|upper| upper.checked_add(unread))
        {
            hint.set_upper(upper);
        }
        hint
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;
    use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

    use super::*;
    use crate::RequestBody;

    type Frames = UnboundedSender<Result<Frame<Bytes>, BoxError>>;

    /// Returns the sender of a body's frames, the body, and its replay.
    async fn body() -> (Frames, RequestBody, crate::Replay) {
        let (frames, received) = unbounded_channel();
        let stream = futures_util::stream::unfold(received, |mut received| async move {
            received.recv().await.map(|frame| (frame, received))
        });
        frames.send(Ok(Frame::data("tea".into()))).unwrap();
        let mut body = RequestBody::take(http_body_util::StreamBody::new(stream)).await.unwrap();
        let replay = body.record_replay();
        (frames, body, replay)
    }

    #[tokio::test]
    async fn recorded_request_body_in_pieces_is_sent_again_from_beginning() {
        let (frames, mut first, replay) = body().await;
        frames.send(Ok(Frame::data("pot".into()))).unwrap();
        for piece in ["tea", "pot"] {
            assert_eq!(first.frame().await.unwrap().unwrap().into_data().unwrap(), piece);
        }
        let mut second = replay.to_body().unwrap();
        // The first attempt takes nothing away from the second.
        frames.send(Ok(Frame::data("s".into()))).unwrap();
        assert!(first.frame().await.unwrap().is_err());
        assert_eq!(second.frame().await.unwrap().unwrap().into_data().unwrap(), "tea");
        let trailers = HeaderMap::from_iter([(http::header::ETAG, "x".parse().unwrap())]);
        frames.send(Ok(Frame::trailers(trailers))).unwrap();
        drop(frames);
        let rest = second.collect().await.unwrap();
        assert_eq!(rest.trailers().unwrap()["etag"], "x");
        assert_eq!(rest.to_bytes(), "pots");
        let third = replay.to_body().unwrap();
        assert_eq!((third.size_hint().lower(), third.size_hint().upper()), (7, None));
        assert_eq!(third.collect().await.unwrap().to_bytes(), "teapots");
    }

    #[tokio::test]
    async fn failed_request_body_is_not_sent_again() {
        let (frames, mut first, replay) = body().await;
        first.frame().await.unwrap().unwrap();
        let mut second = replay.to_body().unwrap();
        frames.send(Err("the client is gone".into())).unwrap();
        drop(frames);
        assert_eq!(second.frame().await.unwrap().unwrap().into_data().unwrap(), "tea");
        for _ in 0..2 {
            assert!(second.frame().await.unwrap().is_err(), "it has no end");
        }
        assert!(!second.is_end_stream() && !replay.is_available() && replay.to_body().is_none());
    }

    #[tokio::test]
    async fn request_body_beyond_recording_limit_is_sent_only_once() {
        let (frames, mut first, replay) = body().await;
        first.frame().await.unwrap().unwrap();
        for _ in 0..3 {
            assert!(replay.is_available());
            frames.send(Ok(Frame::data(vec![7; MAX_BUFFERED / 2 - 256].into()))).unwrap();
            assert!(first.frame().await.unwrap().is_ok());
        }
        assert!(replay.to_body().is_none());
        assert!(poll(&mut first).is_pending());
        drop(frames);
        assert!(first.frame().await.is_none());
    }

    fn poll(body: &mut RequestBody) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        Pin::new(body).poll_frame(&mut Context::from_waker(Waker::noop()))
    }

    #[tokio::test]
    async fn attempt_waiting_for_request_body_ends_when_next_attempt_begins() {
        let (_frames, mut first, replay) = body().await;
        first.frame().await.unwrap().unwrap();
        let waiting = tokio::spawn(async move { first.frame().await });
        tokio::task::yield_now().await;
        let _second = replay.to_body().unwrap();
        assert!(waiting.await.unwrap().unwrap().is_err());
    }

    #[tokio::test]
    async fn recording_of_small_body_frames_stays_within_limit() {
        let (frames, mut first, replay) = body().await;
        first.frame().await.unwrap().unwrap();
        for _ in 0..=MAX_BUFFERED / size_of::<RecordedFrame>() {
            frames.send(Ok(Frame::data(Bytes::new()))).unwrap();
            first.frame().await.unwrap().unwrap();
        }
        assert!(!replay.is_available());
    }

    #[tokio::test]
    async fn recording_of_request_body_stops_once_it_cannot_be_repeated() {
        let (frames, first, replay) = body().await;
        let mut second = replay.to_body().unwrap();
        drop(first);
        frames.send(Ok(Frame::data("pot".into()))).unwrap();
        assert_eq!(second.frame().await.unwrap().unwrap().into_data().unwrap(), "tea");
        assert_eq!(second.frame().await.unwrap().unwrap().into_data().unwrap(), "pot");
        let mut third = replay.to_body().unwrap();
        let recording = Arc::downgrade(&replay.rest.as_ref().unwrap().0);
        drop(replay);
        frames.send(Ok(Frame::data("s".into()))).unwrap();
        drop(frames);
        for piece in ["tea", "pot", "s"] {
            assert_eq!(third.frame().await.unwrap().unwrap().into_data().unwrap(), piece);
        }
        assert!(lock(&recording.upgrade().unwrap()).frames.is_none());
    }
}
