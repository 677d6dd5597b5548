//! Streams of server-sent events, which keep a page up to date.

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::response::sse::{Event, Sse};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    task::spawn_blocking,
    time::{Instant, MissedTickBehavior, interval, timeout},
};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;

use crate::event_delta::Shown;

/// Maximum number of streams in the process.
const MAX_STREAMS: usize = 64;
/// Interval between two events.
const INTERVAL: Duration = Duration::from_secs(2);
/// Time for which a reader may leave an event unread before its stream ends.
const STALL: Duration = Duration::from_secs(10);
/// Lifetime of a stream. The page then opens another one.
const LIFETIME: Duration = Duration::from_secs(60);

/// Function that creates the content of a part, on a thread that may block.
pub(crate) type Make = dyn Fn() -> Arc<Shown> + Send + Sync;

/// A part of a stream: the events with one name.
pub(crate) struct Part {
    pub(crate) name: &'static str,
    /// Number of intervals between two events. Only changes are sent.
    pub(crate) every: u32,
    /// Makes the current content.
    pub(crate) make: Arc<Make>,
}

/// Opens streams, up to a maximum number.
#[derive(Clone, Debug)]
pub(crate) struct Streams {
    permits: Arc<Semaphore>,
    closing: CancellationToken,
}

/// The response that streams events.
pub(crate) type Events = Sse<ReceiverStream<Result<Event, Infallible>>>;

impl Streams {
    pub(crate) fn new(closing: CancellationToken) -> Self {
        Self { permits: Arc::new(Semaphore::new(MAX_STREAMS)), closing }
    }

    /// Opens a stream that begins with the event `hello` and continues with the parts while its reader `is_permitted`;
    /// `None` if there are too many streams. The stream ends if its reader stops reading.
    pub(crate) fn open(
        &self,
        hello: String,
        parts: Vec<Part>,
        is_permitted: impl Fn() -> bool + Send + Sync + 'static,
    ) -> Option<Events> {
        let permit = Arc::clone(&self.permits).try_acquire_owned().ok()?;
        let (sender, receiver) = mpsc::channel(1);
        let producer = Producer { sender, is_permitted: Box::new(is_permitted), _permit: permit };
        let closing = self.closing.clone();
        tokio::spawn(async move { closing.run_until_cancelled(producer.run(hello, parts)).await });
        Some(Sse::new(ReceiverStream::new(receiver)))
    }
}

struct Producer {
    sender: mpsc::Sender<Result<Event, Infallible>>,
    is_permitted: Box<dyn Fn() -> bool + Send + Sync>,
    _permit: OwnedSemaphorePermit,
}

impl Producer {
    /// Sends events until the reader is gone, stops reading or loses its permission, or the stream's lifetime is over.
    async fn run(self, hello: String, parts: Vec<Part>) {
        let ends = Instant::now() + LIFETIME;
        let mut sent: Vec<Option<Arc<Shown>>> = vec![None; parts.len()];
        let mut ticks = interval(INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        if !self.send(Event::default().event("hello").data(hello)).await {
            return;
        }
        for tick in 0_u32.. {
            ticks.tick().await;
            if Instant::now() >= ends || !(self.is_permitted)() {
                return;
            }
            // A comment, which shows the reader that the stream continues although nothing has changed.
            let mut events = vec![Event::default().comment("")];
            for (part, sent) in parts.iter().zip(&mut sent) {
                if !tick.is_multiple_of(part.every) {
                    continue;
                }
                let make = Arc::clone(&part.make);
                // The runtime reports a panic of `make`.
                let Ok(shown) = spawn_blocking(move || make()).await else { return };
                if let Some(data) = shown.since(sent.as_deref()) {
                    events.push(Event::default().event(part.name).data(data));
                }
                *sent = Some(shown);
            }
            // Making the parts takes time.
            if !(self.is_permitted)() {
                return;
            }
            for event in events {
                if !self.send(event).await {
                    return;
                }
            }
        }
    }

    async fn send(&self, event: Event) -> bool {
        matches!(timeout(STALL, self.sender.send(Ok(event))).await, Ok(Ok(())))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    use axum::response::IntoResponse as _;
    use http_body_util::BodyExt as _;

    use super::*;

    fn counting(name: &'static str, every: u32) -> Part {
        let calls = AtomicU32::new(0);
        let make = move || Arc::new(Shown::head(&calls.fetch_add(1, Relaxed)));
        Part { name, every, make: Arc::new(make) }
    }

    #[tokio::test(start_paused = true)]
    async fn page_event_stream_sends_changed_parts_and_ends_after_lifetime() {
        let streams = Streams::new(CancellationToken::new());
        let constant = Part { name: "same", every: 1, make: Arc::new(|| Arc::new(Shown::head(&"x"))) };
        let events = streams.open("hi".into(), vec![counting("calls", 1), constant], || true).unwrap();
        let body = events.into_response().into_body().collect().await.unwrap().to_bytes();
        let text = String::from_utf8(body.to_vec()).unwrap();
        assert!(text.starts_with("event: hello\ndata: hi\n\n"), "{text}");
        assert_eq!(text.matches("event: calls").count(), 30);
        assert_eq!(text.matches("event: same").count(), 1);
        assert_eq!(text.matches("\n: \n").count(), 30, "{text}");
        assert_eq!(streams.permits.available_permits(), MAX_STREAMS);
    }

    #[tokio::test(start_paused = true)]
    async fn page_event_streams_are_bounded_and_end_if_unread() {
        let streams = Streams::new(CancellationToken::new());
        let open = || streams.open(String::new(), vec![counting("calls", 1)], || true);
        let unread: Vec<_> = (0..MAX_STREAMS).map(|_| open().unwrap()).collect();
        assert!(open().is_none());
        tokio::time::sleep(INTERVAL + STALL * 2).await;
        assert!(open().is_some(), "readers that do not read lose their place");
        drop(unread);
    }

    #[tokio::test(start_paused = true)]
    async fn page_event_stream_ends_with_permission_of_its_reader() {
        let streams = Streams::new(CancellationToken::new());
        let (begun, ends) = (Instant::now(), Instant::now() + INTERVAL * 3);
        let events = streams.open("hi".into(), vec![counting("calls", 1)], move || Instant::now() < ends);
        let body = events.unwrap().into_response().into_body().collect().await.unwrap().to_bytes();
        assert_eq!(String::from_utf8(body.to_vec()).unwrap().matches("event: calls").count(), 3);
        assert_eq!(begun.elapsed(), INTERVAL * 3);
    }

    #[tokio::test(start_paused = true)]
    async fn page_event_streams_end_when_process_stops() {
        let closing = CancellationToken::new();
        let streams = Streams::new(closing.clone());
        let events = streams.open(String::new(), vec![counting("calls", 1)], || true).unwrap();
        closing.cancel();
        events.into_response().into_body().collect().await.unwrap();
    }
}
