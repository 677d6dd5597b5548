//! Tells how much CPU an endpoint uses, for the imbalance indicator.

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

use super::{Cpu, Link, LinkError, Registration, load::Load};

/// How often the counters are read and what is new is sent.
const PERIOD: Duration = Duration::from_secs(10);

/// A task that measures a program and reports what it uses, minute by minute, until it is dropped.
///
/// It stands apart from the lease: an endpoint is kept whatever becomes of its figures. While nobody takes them they
/// are kept for a quarter of an hour, each in its own minute.
#[derive(Debug)]
pub struct UsageReports {
    _task: AbortOnDropHandle<()>,
}

struct Reporter {
    link: Arc<Link>,
    registration: Registration,
    cpu: Cpu,
    /// Of the last reading.
    epoch: Option<u32>,
    calls: Option<Calls>,
    minutes: UsageRecorder,
    began: Instant,
    /// Where it runs, once that is known.
    place: Option<Location>,
}

/// Calls ever begun, of a counter that goes round.
struct Calls {
    load: Arc<Load>,
    seen: u32,
    total: u64,
}

impl UsageReports {
    /// Starts to report what a program uses that is registered so and that something else started. Must be called within
    /// a tokio runtime.
    pub fn of_program(link: Arc<Link>, registration: Registration, cpu: Cpu) -> Self {
        Self::start(link, registration, cpu, None)
    }

    /// The same for this program, with the calls that its layer counts.
    pub(super) fn of_server(link: Arc<Link>, registration: Registration, cpu: Cpu, load: Arc<Load>) -> Self {
        let calls = Calls { seen: load.begun(), load, total: 0 };
        Self::start(link, registration, cpu, Some(calls))
    }

    fn start(link: Arc<Link>, registration: Registration, cpu: Cpu, calls: Option<Calls>) -> Self {
        let (place, minutes) = (registration.location.clone(), UsageRecorder::default());
        let began = Instant::now();
        let reporter = Reporter { link, registration, cpu, epoch: None, calls, minutes, began, place };
        Self { _task: AbortOnDropHandle::new(tokio::spawn(reporter.run())) }
    }
}

impl Reporter {
    async fn run(mut self) {
        let mut ticks = interval(PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            // Files of the kernel, though they seldom make anybody wait.
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

    async fn send(&mut self) -> Result<(), LinkError> {
        let unsent = self.minutes.unsent();
        if unsent.is_empty() {
            return Ok(());
        }
        let place = match &self.place {
            Some(place) => place.clone(),
            None => self.link.location().await?.ok_or(LinkError::NoRegion)?,
        };
        match self.link.report_usage(self.message(&place, &unsent)).await {
            // Who answers is of a release that takes no figures.
            Err(LinkError::Refused { status, .. }) if status.code() == Code::Unimplemented => {}
            answer => answer?,
        }
        self.place = Some(place);
        self.minutes.mark_sent(&unsent);
        Ok(())
    }

    fn message(&self, place: &Location, minutes: &[(Minute, Usage)]) -> v1::InstanceUsage {
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
            location: Some(place.clone().into()),
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

/// The clock that names minutes; 1970 where it stands before that.
fn clock_ms() -> u64 {
    #[allow(
        clippy::disallowed_methods,
        reason = "the one place where the server side asks for the time of day"
    )]
    let now = SystemTime::now();
    now.duration_since(UNIX_EPOCH).map_or(0, millis)
}
