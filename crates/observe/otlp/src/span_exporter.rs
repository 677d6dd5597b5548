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
    AttributeValue, Collector, SecuredConnect, Span,
    collector::{ExportClient, ExportError},
    span::attributes,
    v1::{ExportTraceServiceRequest, InstrumentationScope, Resource, ResourceSpans, ScopeSpans},
};

/// Capacity of the queue, in spans. Further spans are dropped and counted, because an unavailable collector must not
/// fill the memory.
const QUEUE_CAPACITY: usize = 4096;
/// Maximum number of spans in a batch, and the time that an incomplete batch waits.
const MAX_BATCH: usize = 512;
const BATCH_DELAY: Duration = Duration::from_secs(1);
/// Time limit for one export.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of attempts per batch, and the first backoff, which doubles with each attempt.
const MAX_ATTEMPTS: u32 = 4;
const INITIAL_BACKOFF: Duration = Duration::from_millis(500);

/// Exports spans to a collector in batches, from a separate task. Cheap to clone.
#[derive(Clone)]
pub struct Exporter {
    shared: Arc<Shared>,
}

struct Shared {
    /// `None` after the exporter was stopped.
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

/// Number of spans so far, by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Spans that the collector accepted.
    pub exported: u64,
    /// Spans dropped because the queue was full.
    pub dropped: u64,
    /// Spans that the collector rejected, or that were given up after failed attempts.
    pub refused: u64,
}

impl Exporter {
    /// Starts an exporter with its task; must be called within a tokio runtime. `resource` contains the attributes of
    /// this process, such as `service.name`. `connect` opens connections to a collector at `https`.
    pub fn start(
        to: &Collector,
        resource: Vec<(String, AttributeValue)>,
        connect: Option<SecuredConnect>,
    ) -> Self {
        let (queue, spans) = channel(QUEUE_CAPACITY);
        let counters = Arc::<Counters>::default();
        let worker = Worker {
            channels: ExportClient::new(to, connect),
            to: to.to_string(),
            resource: Resource { attributes: attributes(resource) },
            counters: Arc::clone(&counters),
            failing: false,
        };
        let task = tokio::spawn(worker.run(spans));
        let (queue, task) = (Mutex::new(Some(queue)), Mutex::new(Some(task)));
        Self { shared: Arc::new(Shared { queue, counters, task }) }
    }

    /// Enqueues spans; never waits.
    pub fn export(&self, spans: impl IntoIterator<Item = Span>) {
        let queue = self.shared.queue.lock().unwrap_or_else(PoisonError::into_inner);
        for span in spans {
            if queue.as_ref().is_none_or(|queue| queue.try_send(span).is_err()) {
                self.shared.counters.dropped.fetch_add(1, Relaxed);
            }
        }
    }

    /// Returns the number of spans so far, by outcome.
    pub fn counts(&self) -> Counts {
        let Counters { exported, dropped, refused } = &*self.shared.counters;
        let [exported, dropped, refused] = [exported, dropped, refused].map(|counter| counter.load(Relaxed));
        Counts { exported, dropped, refused }
    }

    /// Refuses further spans, and waits until the queue is exported, but no longer than the deadline.
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

/// The task that exports.
struct Worker {
    channels: ExportClient,
    to: String,
    resource: Resource,
    counters: Arc<Counters>,
    failing: bool,
}

impl Worker {
    async fn run(mut self, mut spans: Receiver<Span>) {
        while let Some(first) = spans.recv().await {
            let mut batch = vec![first];
            let ends = Instant::now() + BATCH_DELAY;
            // Collects spans until the batch is full, its time is up, or the queue is closed.
            while batch.len() < MAX_BATCH {
                let room = MAX_BATCH - batch.len();
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
        let mut wait = INITIAL_BACKOFF;
        for further in (0..MAX_ATTEMPTS).rev() {
            let sent = timeout(EXPORT_TIMEOUT, self.channels.send(&batch)).await;
            let late = |_| Err(ExportError::Retryable(format!("it took longer than {EXPORT_TIMEOUT:?}")));
            match sent.unwrap_or_else(late) {
                Ok(refused) => {
                    self.counters.exported.fetch_add(count.saturating_sub(refused), Relaxed);
                    self.counters.refused.fetch_add(refused.min(count), Relaxed);
                    self.failing = false;
                    return;
                }
                Err(ExportError::Retryable(_)) if further > 0 => {
                    sleep(wait).await;
                    wait *= 2;
                }
                Err(error) => {
                    self.log_failure(&error);
                    break;
                }
            }
        }
        self.counters.refused.fetch_add(count, Relaxed);
    }

    /// Logs only the first of consecutive failures, because an unavailable collector must not fill the log.
    fn log_failure(&mut self, error: &ExportError) {
        if !std::mem::replace(&mut self.failing, true) {
            let collector = &self.to;
            tracing::warn!(collector, %error, "cannot export spans; check the address, and that it speaks OTLP");
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
