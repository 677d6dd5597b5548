//! Reports the signals of an endpoint: CPU usage by minute for the imbalance indicator, and load for planners.

mod count_reports;

use std::{
    hash::{BuildHasher as _, RandomState},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use fairmesh_imbalance::{CounterReading, Minute, Moment, Usage, UsageRecorder};
use fairmesh_model::{Location, TrafficReport};
use fairmesh_signals::{
    CpuReading, IDLE_INTERVAL_MS, REPORT_INTERVAL_MS, ServedMeter, ServerMeter, ServerReading,
};
use fairmesh_wire::v1;
use tokio::{
    task::spawn_blocking,
    time::{Instant, MissedTickBehavior, interval, timeout},
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};
use tonic::Code;

use count_reports::CountReports;

use crate::{
    ConnectionAuthorizer, Cpu, CpuTime, Registration, RegistryClient, RegistryError,
    layer::{LayerState, processed_call::ServedClasses, server_load::ServerLoad},
};

/// Interval at which the counters are read if a planner needs the load.
const TRAFFIC_INTERVAL: Duration = Duration::from_millis(REPORT_INTERVAL_MS);
/// Interval at which counts are sent if nothing else is sent.
const COUNTS_INTERVAL: Duration = Duration::from_millis(IDLE_INTERVAL_MS);
/// Interval at which the usage of new minutes is sent.
const USAGE_INTERVAL: Duration = Duration::from_secs(10);
/// Time limit of the last report of a server that is stopping.
const LAST_REPORT: Duration = Duration::from_secs(1);

/// A task that measures a program, and reports its CPU usage by minute and its load, until it is dropped.
///
/// The task is independent of the lease: failing reports do not affect the registration. Unsent minutes are kept for 15
/// minutes.
#[derive(Debug)]
pub struct SignalReports {
    stop: CancellationToken,
    task: Mutex<Option<AbortOnDropHandle<()>>>,
}

struct Reporter {
    registry: Arc<RegistryClient>,
    registration: Registration,
    /// CPU counters of the program; `None` if the program's process is unknown.
    cpu: Option<Cpu>,
    /// Epoch of the last reading.
    epoch: Option<u32>,
    calls: Option<Calls>,
    served: Option<Served>,
    counts: Option<CountReports>,
    minutes: UsageRecorder,
    /// Time at which usage by minute was last sent.
    minutes_at: Option<Instant>,
    /// Number that identifies this process in traffic reports.
    id: u64,
    meter: ServerMeter,
    began: Instant,
    /// Location of the endpoint, once known.
    location: Option<Location>,
    /// The interval of reports that the receiver asked for, and the time when the next one is due.
    interval: Duration,
    next: Instant,
}

/// Calls processed by the layer, by class.
struct Served {
    classes: Arc<ServedClasses>,
    meter: ServedMeter,
}

/// Calls ever begun, from a counter that wraps around.
struct Calls {
    load: Arc<ServerLoad>,
    seen: u32,
    total: u64,
}

impl SignalReports {
    /// Starts to report the signals of a registered program that runs as its own process: its CPU usage, if it can be
    /// measured, and the requests that `front` counts. Must be called within a tokio runtime.
    pub fn of_program(
        registry: Arc<RegistryClient>,
        registration: Registration,
        cpu: Option<Cpu>,
        front: Option<&ConnectionAuthorizer>,
    ) -> Self {
        let counts = front.map(CountReports::of_front);
        let served =
            front.map(|front| Served { classes: Arc::clone(&front.served), meter: ServedMeter::default() });
        Self::start(registry, registration, cpu, (None, served, counts))
    }

    /// Starts to report the signals of this program, with the calls that its layer counts.
    pub(crate) fn of_server(
        registry: Arc<RegistryClient>,
        registration: Registration,
        cpu: Cpu,
        layer: &LayerState,
    ) -> Self {
        let load = Arc::clone(&layer.load);
        let calls = Calls { seen: load.begun(), load, total: 0 };
        let served = Served { classes: Arc::clone(&layer.served), meter: ServedMeter::default() };
        let counts = CountReports::of(layer);
        Self::start(registry, registration, Some(cpu), (Some(calls), Some(served), Some(counts)))
    }

    fn start(
        registry: Arc<RegistryClient>,
        registration: Registration,
        cpu: Option<Cpu>,
        (calls, served, counts): (Option<Calls>, Option<Served>, Option<CountReports>),
    ) -> Self {
        let (location, began) = (registration.location.clone(), Instant::now());
        let reporter = Reporter {
            registry,
            registration,
            cpu,
            epoch: None,
            calls,
            served,
            counts,
            minutes: UsageRecorder::default(),
            // A first report that covers one second would contain almost no information.
            minutes_at: Some(began),
            id: RandomState::new().hash_one(began),
            meter: ServerMeter::default(),
            began,
            location,
            interval: TRAFFIC_INTERVAL,
            next: began,
        };
        let stop = CancellationToken::new();
        let task = AbortOnDropHandle::new(tokio::spawn(reporter.run(stop.clone())));
        Self { stop, task: Mutex::new(Some(task)) }
    }

    /// Reports what was counted since the last report, then stops reporting. Returns within a second. For a server
    /// whose calls have ended.
    pub async fn close(&self) {
        self.stop.cancel();
        let task = self.task.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(task) = task {
            let _ = timeout(LAST_REPORT, task).await;
        }
    }
}

impl Reporter {
    async fn run(mut self, stop: CancellationToken) {
        let mut ticks = interval(TRAFFIC_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = stop.cancelled() => {
                    // The location may be unknown, if no report was due yet.
                    let _ = self.locate().await;
                    return self.report_counts().await;
                }
            }
            if Instant::now() < self.next {
                continue;
            }
            match self.cpu.clone() {
                Some(cpu) => {
                    // Reads kernel files, which rarely block.
                    let Ok(time) = spawn_blocking(move || cpu.read()).await else { return };
                    self.report_load(time).await;
                }
                None => {
                    let _ = self.locate().await;
                    self.next = Instant::now() + COUNTS_INTERVAL;
                }
            }
            self.report_counts().await;
        }
    }

    /// Reports CPU usage and load.
    async fn report_load(&mut self, time: Option<CpuTime>) {
        if let Some(time) = time {
            self.record_usage(time);
        }
        let traffic = self.traffic(time);
        if let Err(error) = self.send(traffic).await {
            let service = &self.registration.service;
            tracing::debug!(%service, %error, "CPU usage could not be reported; it is kept for later");
        }
    }

    /// Reports the counts, and reports again as soon as the receiver asks for it.
    async fn report_counts(&mut self) {
        let (Some(counts), Some(location)) = (&mut self.counts, &self.location) else { return };
        let now_ms = millis(self.began.elapsed());
        counts.read(&self.registration.service, &location.region, now_ms);
        if let Some(asked) = counts.send(&self.registry, now_ms).await {
            let asked = Duration::from_millis(asked).max(TRAFFIC_INTERVAL);
            self.next = self.next.min(Instant::now() + asked - TRAFFIC_INTERVAL / 2);
        }
    }

    fn record_usage(&mut self, time: CpuTime) {
        if self.epoch.replace(time.epoch) != Some(time.epoch) {
            self.minutes.restart();
        }
        let reading = CounterReading {
            cpu_us: time.used_us,
            limit_millicores: time.limit_millicores,
            requests: self.calls.as_mut().map_or(0, Calls::total),
        };
        if let Some(counts) = &mut self.counts {
            counts.divide_cpu(time.epoch, time.used_us);
        }
        let elapsed_ms = millis(time.at.duration_since(self.began));
        self.minutes.record(Moment { elapsed_ms, clock_ms: clock_ms() }, reading);
    }

    /// Builds the report of the time since the last one; `None` for the first reading.
    fn traffic(&mut self, time: Option<CpuTime>) -> Option<TrafficReport> {
        let cpu = time.map(|time| CpuReading {
            used_us: time.used_us,
            limit_millicores: time.limit_millicores,
            epoch: time.epoch,
        });
        let at = time.map_or_else(Instant::now, |time| time.at);
        let reading = ServerReading {
            at_ms: millis(at.duration_since(self.began)),
            calls: self.calls.as_mut().map(|calls| (calls.total(), calls.load.refusals().overloaded())),
            cpu,
            metrics: self.calls.as_ref().map(|calls| calls.load.program_metrics()).unwrap_or_default(),
        };
        let at_ms = reading.at_ms;
        let rates = self.meter.read(reading)?;
        let region = self.location.as_ref()?.region.clone();
        // Read in any case, so that the next rates cover one interval.
        let served = self
            .served
            .as_mut()
            .and_then(|served| Some(served.meter.read(&*served.classes.counters()?, &region, at_ms)))
            .filter(|_| reports_served(self.interval));
        Some(TrafficReport {
            reporter: self.id,
            interval: self.interval,
            regions: [region.clone()].into(),
            served: served.unwrap_or_default(),
            servers: [((self.registration.service.clone(), region), rates)].into(),
            ..Default::default()
        })
    }

    /// Sends minutes and load separately. A replica forwards the minutes as this process signed them, but sums the
    /// load.
    async fn send(&mut self, traffic: Option<TrafficReport>) -> Result<(), RegistryError> {
        let is_due = self.minutes_at.is_none_or(|at| at.elapsed() + TRAFFIC_INTERVAL / 2 >= USAGE_INTERVAL);
        let unsent = if is_due { self.minutes.unsent() } else { Vec::new() };
        let location = self.locate().await?;
        if unsent.is_empty() && traffic.is_none() {
            return Ok(());
        }
        // If rates are refused, minutes are still sent.
        let rates = match traffic {
            Some(traffic) => self.report(traffic.into()).await,
            None => Ok(v1::ReportSignalsResponse::default()),
        };
        if !unsent.is_empty() {
            let usages = vec![self.message(&location, &unsent)];
            self.report(v1::ReportSignalsRequest { usages, ..Default::default() }).await?;
        }
        if is_due {
            self.minutes_at = Some(Instant::now());
        }
        self.minutes.mark_sent(&unsent);
        self.interval = match rates?.next_report_ms {
            0 => USAGE_INTERVAL,
            asked => Duration::from_millis(asked.into()).clamp(TRAFFIC_INTERVAL, USAGE_INTERVAL),
        };
        self.next = Instant::now() + self.interval - TRAFFIC_INTERVAL / 2;
        Ok(())
    }

    /// Determines the location: as registered, or as the agent reports it.
    async fn locate(&mut self) -> Result<Location, RegistryError> {
        let location = match &self.location {
            Some(location) => location.clone(),
            None => self.registry.location().await?.ok_or(RegistryError::NoRegion)?,
        };
        self.location = Some(location.clone());
        Ok(location)
    }

    async fn report(
        &self,
        report: v1::ReportSignalsRequest,
    ) -> Result<v1::ReportSignalsResponse, RegistryError> {
        match self.registry.report_signals(report).await {
            // The peer is of a release without these reports.
            Err(RegistryError::Refused { status, .. }) if status.code() == Code::Unimplemented => {
                Ok(v1::ReportSignalsResponse::default())
            }
            result => result,
        }
    }

    fn message(&self, location: &Location, minutes: &[(Minute, Usage)]) -> v1::InstanceUsage {
        let minutes = minutes.iter().map(|(minute, usage)| v1::MinuteUsage {
            minute: minute.0,
            cpu_us: usage.cpu_us,
            covered_ms: usage.covered_ms,
            limit_millicores: usage.limit_millicores,
            requests: usage.requests,
        });
        v1::InstanceUsage {
            service: self.registration.service.to_string(),
            instance: self.registration.instance.to_string(),
            location: Some(location.clone().into()),
            minutes: minutes.collect(),
        }
    }
}

impl Calls {
    fn total(&mut self) -> u64 {
        let now = self.load.begun();
        self.total += u64::from(now.wrapping_sub(self.seen));
        self.seen = now;
        self.total
    }
}

/// Whether reports at this interval include the processed calls. The receiver requests a short interval while a
/// service is planned or viewed; otherwise nothing reads these counts.
fn reports_served(interval: Duration) -> bool {
    interval < Duration::from_millis(IDLE_INTERVAL_MS)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Wall-clock time by which minutes are named, in milliseconds since 1970; 0 if the clock is before 1970.
fn clock_ms() -> u64 {
    #[allow(clippy::disallowed_methods, reason = "the one place where the server side reads the time of day")]
    let now = SystemTime::now();
    now.duration_since(UNIX_EPOCH).map_or(0, millis)
}
