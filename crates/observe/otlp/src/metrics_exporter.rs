use std::{
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use prometheus_client::encoding::prometheus_protobuf::prometheus_data_model::MetricFamily;
use prost::Message as _;
use tokio::{
    sync::oneshot,
    task::{JoinHandle, spawn_blocking},
    time::{Instant, MissedTickBehavior, interval, sleep, timeout, timeout_at},
};

use crate::{
    AttributeValue, Collector,
    collector::{ExportClient, ExportError},
    metric_families::{Times, metric, split},
    metrics::v1::{ExportMetricsServiceRequest, Metric, ResourceMetrics, ScopeMetrics},
    span::attributes,
    v1::{InstrumentationScope, Resource},
};

/// Maximum size of the metrics in a request, in bytes. It keeps requests below the 4 MiB that collectors accept over
/// gRPC.
const MAX_BYTES: usize = 2 << 20;
/// Maximum number of attempts per request, and the first backoff, which doubles with each attempt.
const MAX_ATTEMPTS: u32 = 4;
const INITIAL_BACKOFF: Duration = Duration::from_millis(500);

/// Destination of exported metrics, and interval of the exports.
#[derive(Clone, Debug)]
pub struct MetricsConfig {
    /// Collector that receives the metrics.
    pub to: Collector,
    /// Interval between two exports.
    pub interval: Duration,
    /// Time limit for an export, including retries.
    pub timeout: Duration,
    /// Attributes of this process, such as `service.name`.
    pub resource: Vec<(String, AttributeValue)>,
}

/// Exports all metrics periodically, from a separate task. Nothing is queued: values are totals since the start, so
/// the next export makes up for a failed one.
pub struct MetricsExporter {
    counters: Arc<Counters>,
    stopping: Mutex<Option<oneshot::Sender<()>>>,
    task: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug, Default)]
struct Counters {
    succeeded: AtomicU64,
    failed: AtomicU64,
    rejected: AtomicU64,
}

/// Number of exports so far, by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MetricsCounts {
    /// Number of exports that the collector accepted.
    pub succeeded: u64,
    /// Number of exports that the collector refused, or that were given up.
    pub failed: u64,
    /// Number of data points that the collector rejected.
    pub rejected_points: u64,
}

impl MetricsExporter {
    /// Starts an exporter with its task; must be called within a tokio runtime. `gather` reads the current values,
    /// and may block.
    pub fn start(
        config: MetricsConfig,
        gather: impl Fn() -> Vec<MetricFamily> + Send + Sync + 'static,
    ) -> Self {
        let (stopping, stopped) = oneshot::channel();
        let counters = Arc::<Counters>::default();
        let worker = Worker {
            client: ExportClient::new(&config.to, None),
            resource: Resource { attributes: attributes(config.resource.clone()) },
            config,
            counters: Arc::clone(&counters),
            start: unix_nanos(),
            failing: false,
        };
        let task = tokio::spawn(worker.run(Arc::new(gather), stopped));
        Self { counters, stopping: Mutex::new(Some(stopping)), task: Mutex::new(Some(task)) }
    }

    /// Returns the number of exports so far, by outcome.
    pub fn counts(&self) -> MetricsCounts {
        let Counters { succeeded, failed, rejected } = &*self.counters;
        let [succeeded, failed, rejected_points] =
            [succeeded, failed, rejected].map(|counter| counter.load(Relaxed));
        MetricsCounts { succeeded, failed, rejected_points }
    }

    /// Exports the last values, and waits for this no longer than the deadline.
    pub async fn stop(&self, deadline: Instant) {
        drop(self.stopping.lock().unwrap_or_else(PoisonError::into_inner).take());
        let task = self.task.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(mut task) = task
            && timeout_at(deadline, &mut task).await.is_err()
        {
            task.abort();
        }
    }
}

impl Drop for MetricsExporter {
    fn drop(&mut self) {
        if let Some(task) = self.task.get_mut().unwrap_or_else(PoisonError::into_inner) {
            task.abort();
        }
    }
}

/// The task that exports.
struct Worker {
    client: ExportClient,
    resource: Resource,
    config: MetricsConfig,
    counters: Arc<Counters>,
    /// Time at which the exporter was started, in nanoseconds since 1970.
    start: u64,
    failing: bool,
}

impl Worker {
    async fn run<G>(mut self, gather: Arc<G>, mut stopped: oneshot::Receiver<()>)
    where
        G: Fn() -> Vec<MetricFamily> + Send + Sync + 'static,
    {
        let mut ticks = interval(self.config.interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // The first tick is immediate, when there is nothing to report yet.
        ticks.tick().await;
        let mut is_last = false;
        while !is_last {
            tokio::select! {
                _ = ticks.tick() => {}
                _ = &mut stopped => is_last = true,
            }
            let gather = Arc::clone(&gather);
            // Fails only when the runtime stops.
            if let Ok(families) = spawn_blocking(move || gather()).await {
                self.export(&families).await;
            }
        }
    }

    async fn export(&mut self, families: &[MetricFamily]) {
        let times = Times { start: self.start, now: unix_nanos() };
        let present = families.iter().filter(|family| !family.metric.is_empty());
        let requests = self.requests(present.map(|family| metric(family, times)));
        let limit = self.config.timeout;
        let delivered = timeout(limit, self.deliver(&requests)).await;
        let late = |_| Err(ExportError::Retryable(format!("it took longer than {limit:?}")));
        match delivered.unwrap_or_else(late) {
            Ok(rejected) => {
                self.counters.succeeded.fetch_add(1, Relaxed);
                self.counters.rejected.fetch_add(rejected, Relaxed);
                self.failing = false;
            }
            Err(error) => {
                self.counters.failed.fetch_add(1, Relaxed);
                // Logs only the first of consecutive failures, because an unavailable collector must not fill the
                // log.
                if !std::mem::replace(&mut self.failing, true) {
                    let collector = self.config.to.to_string();
                    tracing::warn!(collector, %error, "cannot export metrics; check the address, and that it speaks OTLP");
                }
            }
        }
    }

    /// Sends all requests, even after a failed one. Returns the number of rejected data points, or the first error.
    async fn deliver(&mut self, requests: &[ExportMetricsServiceRequest]) -> Result<u64, ExportError> {
        let mut delivered = Ok(0);
        for request in requests {
            delivered = match (delivered, self.send(request).await) {
                (Ok(sum), sent) => sent.map(|rejected| sum + rejected),
                (failed, _) => failed,
            };
        }
        delivered
    }

    async fn send(&mut self, request: &ExportMetricsServiceRequest) -> Result<u64, ExportError> {
        let mut wait = INITIAL_BACKOFF;
        for _ in 1..MAX_ATTEMPTS {
            match self.client.send(request).await {
                Err(ExportError::Retryable(_)) => sleep(wait).await,
                sent => return sent,
            }
            wait *= 2;
        }
        self.client.send(request).await
    }

    fn requests(&self, metrics: impl Iterator<Item = Metric>) -> Vec<ExportMetricsServiceRequest> {
        let mut batches = vec![(Vec::new(), 0)];
        for metric in metrics.flat_map(|metric| split(metric, MAX_BYTES)) {
            let bytes = metric.encoded_len();
            if let Some((batch, sum)) = batches.last_mut()
                && (batch.is_empty() || *sum + bytes <= MAX_BYTES)
            {
                batch.push(metric);
                *sum += bytes;
            } else {
                batches.push((vec![metric], bytes));
            }
        }
        let request = |(metrics, _)| {
            let scope =
                InstrumentationScope { name: "fairmesh".into(), version: env!("CARGO_PKG_VERSION").into() };
            let scope_metrics = vec![ScopeMetrics { scope: Some(scope), metrics }];
            let resource = Some(self.resource.clone());
            ExportMetricsServiceRequest {
                resource_metrics: vec![ResourceMetrics { resource, scope_metrics }],
            }
        };
        batches.into_iter().map(request).collect()
    }
}

#[allow(
    clippy::disallowed_methods,
    reason = "exported values say when they were read, and nothing is decided by it"
)]
fn unix_nanos() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

impl fmt::Debug for MetricsExporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MetricsExporter").field("counts", &self.counts()).finish_non_exhaustive()
    }
}
