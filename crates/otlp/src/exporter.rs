use std::{
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::{
    sync::mpsc::{Receiver, Sender, channel},
    task::JoinHandle,
    time::{Instant, sleep, timeout, timeout_at},
};

use crate::{
    Collector, Span, Value,
    collector::{Channels, NotTaken},
    span::attributes,
    v1::{ExportTraceServiceRequest, InstrumentationScope, Resource, ResourceSpans, ScopeSpans},
};

/// Spans that wait; the next ones are dropped and counted, since a collector that is gone must not fill the memory.
const WAITING: usize = 4096;
/// The most spans of a batch, and how long its first one waits for others.
const BATCH: usize = 512;
const GATHER: Duration = Duration::from_secs(1);
/// How long a collector may take for a batch.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often a batch is tried, and the first wait in between, which doubles.
const TRIES: u32 = 4;
const FIRST_WAIT: Duration = Duration::from_millis(500);

/// Takes spans to a collector, in batches, on a task of its own. Cheap to clone.
#[derive(Clone)]
pub struct Exporter {
    shared: Arc<Shared>,
}

struct Shared {
    /// `None` once it was told to stop.
    queue: Mutex<Option<Sender<Span>>>,
    counters: Arc<Counters>,
    task: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug, Default)]
struct Counters {
    exported: AtomicU64,
    dropped: AtomicU64,
    refused: AtomicU64,
}

/// What became of spans so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Taken by the collector.
    pub exported: u64,
    /// Dropped, since too many waited.
    pub dropped: u64,
    /// Given up after the collector had not taken them.
    pub refused: u64,
}

impl Exporter {
    /// Starts a task, so that it must be called within a tokio runtime. `about` says who tells, as `service.name` does.
    pub fn start(to: &Collector, about: Vec<(&'static str, Value)>) -> Self {
        let (queue, spans) = channel(WAITING);
        let counters = Arc::<Counters>::default();
        let worker = Worker {
            channels: Channels::to(to),
            to: to.to_string(),
            resource: Resource { attributes: attributes(about) },
            counters: Arc::clone(&counters),
            complained: false,
        };
        let task = tokio::spawn(worker.run(spans));
        let (queue, task) = (Mutex::new(Some(queue)), Mutex::new(Some(task)));
        Self { shared: Arc::new(Shared { queue, counters, task }) }
    }

    /// Hands spans over; never waits.
    pub fn export(&self, spans: impl IntoIterator<Item = Span>) {
        let queue = self.shared.queue.lock().unwrap_or_else(PoisonError::into_inner);
        for span in spans {
            if queue.as_ref().is_none_or(|queue| queue.try_send(span).is_err()) {
                self.shared.counters.dropped.fetch_add(1, Relaxed);
            }
        }
    }

    /// What became of spans so far.
    pub fn counts(&self) -> Counts {
        let Counters { exported, dropped, refused } = &*self.shared.counters;
        let [exported, dropped, refused] = [exported, dropped, refused].map(|counter| counter.load(Relaxed));
        Counts { exported, dropped, refused }
    }

    /// Takes no more spans, and waits until those that it has are gone, at most until then.
    pub async fn stop(&self, deadline: Instant) {
        drop(self.shared.queue.lock().unwrap_or_else(PoisonError::into_inner).take());
        let task = self.shared.task.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(mut task) = task
            && timeout_at(deadline, &mut task).await.is_err()
        {
            task.abort();
        }
    }
}

/// Who takes them there.
struct Worker {
    channels: Channels,
    to: String,
    resource: Resource,
    counters: Arc<Counters>,
    complained: bool,
}

impl Worker {
    async fn run(mut self, mut spans: Receiver<Span>) {
        while let Some(first) = spans.recv().await {
            let mut batch = vec![first];
            let ends = Instant::now() + GATHER;
            // Until it is full, its time is up, or there will be no more.
            while batch.len() < BATCH {
                let room = BATCH - batch.len();
                match timeout_at(ends, spans.recv_many(&mut batch, room)).await {
                    Ok(1..) => {}
                    Ok(0) | Err(_) => break,
                }
            }
            self.deliver(batch).await;
        }
    }

    async fn deliver(&mut self, batch: Vec<Span>) {
        let count = batch.len() as u64;
        let batch = self.request(batch);
        let mut wait = FIRST_WAIT;
        for further in (0..TRIES).rev() {
            let sent = timeout(PATIENCE, self.channels.send(&batch)).await;
            let late = |_| Err(NotTaken::NotNow(format!("it took longer than {PATIENCE:?}")));
            match sent.unwrap_or_else(late) {
                Ok(refused) => {
                    self.counters.exported.fetch_add(count.saturating_sub(refused), Relaxed);
                    self.counters.refused.fetch_add(refused.min(count), Relaxed);
                    self.complained = false;
                    return;
                }
                Err(NotTaken::NotNow(_)) if further > 0 => {
                    sleep(wait).await;
                    wait *= 2;
                }
                Err(error) => {
                    self.complain(&error);
                    break;
                }
            }
        }
        self.counters.refused.fetch_add(count, Relaxed);
    }

    /// Once, until it goes well again: a collector that is gone must not fill the log.
    fn complain(&mut self, error: &NotTaken) {
        if !std::mem::replace(&mut self.complained, true) {
            tracing::warn!(collector = %self.to, %error, "spans are not taken; check the address, and that it speaks OTLP");
        }
    }

    fn request(&self, batch: Vec<Span>) -> ExportTraceServiceRequest {
        let scope =
            InstrumentationScope { name: "fairmesh".into(), version: env!("CARGO_PKG_VERSION").into() };
        let spans = batch.into_iter().map(Into::into).collect();
        let scope_spans = vec![ScopeSpans { scope: Some(scope), spans }];
        let resource = Some(self.resource.clone());
        ExportTraceServiceRequest { resource_spans: vec![ResourceSpans { resource, scope_spans }] }
    }
}

impl fmt::Debug for Exporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exporter").field("counts", &self.counts()).finish_non_exhaustive()
    }
}
