//! Reports CPU usage of an endpoint for the imbalance indicator.

use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use fairmesh_imbalance::{CounterReading, Minute, Moment, Usage, UsageRecorder};
use fairmesh_model::Location;
use fairmesh_wire::v1;
use tokio::{
    task::spawn_blocking,
    time::{Instant, MissedTickBehavior, interval},
};
use tokio_util::task::AbortOnDropHandle;
use tonic::Code;

use super::Cpu;
use crate::{Registration, RegistryClient, RegistryError, layer::server_load::ServerLoad};

/// How often the counters are read and new minutes are sent.
const INTERVAL: Duration = Duration::from_secs(10);

/// A task that measures a program and reports its usage, minute by minute, until it is dropped.
///
/// It is independent of the lease: failing reports do not affect the registration. Unsent minutes are kept for a
/// quarter of an hour.
#[derive(Debug)]
pub struct UsageReports {
    _task: AbortOnDropHandle<()>,
}

struct Reporter {
    registry: Arc<RegistryClient>,
    registration: Registration,
    cpu: Cpu,
    /// Epoch of the last reading.
    epoch: Option<u32>,
    calls: Option<Calls>,
    minutes: UsageRecorder,
    began: Instant,
    /// Its location, once known.
    location: Option<Location>,
}

/// Calls ever begun, from a counter that wraps around.
struct Calls {
    load: Arc<ServerLoad>,
    seen: u32,
    total: u64,
}

impl UsageReports {
    /// Starts to report the usage of a registered program that was started separately. Must be called within a tokio
    /// runtime.
    pub fn of_program(registry: Arc<RegistryClient>, registration: Registration, cpu: Cpu) -> Self {
        Self::start(registry, registration, cpu, None)
    }

    /// The same for this program, with the calls that its layer counts.
    pub(crate) fn of_server(
        registry: Arc<RegistryClient>,
        registration: Registration,
        cpu: Cpu,
        load: Arc<ServerLoad>,
    ) -> Self {
        let calls = Calls { seen: load.begun(), load, total: 0 };
        Self::start(registry, registration, cpu, Some(calls))
    }

    fn start(
        registry: Arc<RegistryClient>,
        registration: Registration,
        cpu: Cpu,
        calls: Option<Calls>,
    ) -> Self {
        let (location, minutes) = (registration.location.clone(), UsageRecorder::default());
        let began = Instant::now();
        let reporter = Reporter { registry, registration, cpu, epoch: None, calls, minutes, began, location };
        Self { _task: AbortOnDropHandle::new(tokio::spawn(reporter.run())) }
    }
}

impl Reporter {
    async fn run(mut self) {
        let mut ticks = interval(INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            // Kernel files, which rarely block.
            let Ok(read) = spawn_blocking(move || self.read()).await else { return };
            self = read;
            if let Err(error) = self.send().await {
                let service = &self.registration.service;
                tracing::debug!(%service, %error, "CPU usage could not be reported; it is kept for later");
            }
        }
    }

    fn read(mut self) -> Self {
        let Some(time) = self.cpu.read() else { return self };
        if self.epoch.replace(time.epoch) != Some(time.epoch) {
            self.minutes.restart();
        }
        let reading = CounterReading {
            cpu_us: time.used_us,
            limit_millicores: time.limit_millicores,
            requests: self.calls.as_mut().map_or(0, Calls::total),
        };
        let elapsed_ms = millis(time.at.duration_since(self.began));
        self.minutes.record(Moment { elapsed_ms, clock_ms: clock_ms() }, reading);
        self
    }

    async fn send(&mut self) -> Result<(), RegistryError> {
        let unsent = self.minutes.unsent();
        if unsent.is_empty() {
            return Ok(());
        }
        let location = match &self.location {
            Some(location) => location.clone(),
            None => self.registry.location().await?.ok_or(RegistryError::NoRegion)?,
        };
        match self.registry.report_usage(self.message(&location, &unsent)).await {
            // The peer is of a release without usage reports.
            Err(RegistryError::Refused { status, .. }) if status.code() == Code::Unimplemented => {}
            result => result?,
        }
        self.location = Some(location);
        self.minutes.mark_sent(&unsent);
        Ok(())
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

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// The clock that names minutes; 1970 where it is before that.
fn clock_ms() -> u64 {
    #[allow(clippy::disallowed_methods, reason = "the one place where the server side reads the time of day")]
    let now = SystemTime::now();
    now.duration_since(UNIX_EPOCH).map_or(0, millis)
}
