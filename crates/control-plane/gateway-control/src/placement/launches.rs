//! Decides when a launcher starts a backend: where a service grows and no backend has room (Canal Mesh, section 4.3: *New*).
//!
//! The record of the backend is written first, without replicas, and again before each further attempt, so that only the control plane with
//! the writer lease runs the launcher. The name and the zone are in the record: a control plane that takes over runs the launcher for the same
//! backend, after the time that a launcher may take, since its predecessor's launcher may still run. Once the launcher has printed the addresses
//! of the replicas, they complete the record, and the backend gets services once it reports. Rejected: the launcher writes the record itself.
//! It would need a certificate of an administrator, and an answer that is lost would start a second backend.
//!
//! One backend is started at a time. While a started one in the same zone does not report, no other is, so that a service that takes backends
//! down starts no further ones.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use fairmesh_controllers::{Refusal, Write};
use fairmesh_model::{GatewayBackend, Label, RecordKey, ServiceName, Zone};
use fairmesh_rib::{Expect, Op};
use fairmesh_wire::record_encoding;
use tokio::{sync::Notify, time::Instant};

use crate::launcher::{GatewayLauncher, Launch};

/// How long a service lacks a backend before one is started.
const LACKING: Duration = Duration::from_secs(10);
/// Pause after the first failure; it doubles with each further one.
const FIRST_PAUSE: Duration = Duration::from_secs(10);
/// The longest pause after failures.
const LONGEST_PAUSE: Duration = Duration::from_mins(10);
/// The names of launched backends: this, and the smallest free number from 1 on.
const PREFIX: &str = "launched-";

/// Remembers what is started.
#[derive(Clone, Debug)]
pub(super) struct LaunchRounds {
    launcher: Option<GatewayLauncher>,
    /// What runs; shared with the task that runs it, and with the clone that follows a panic.
    running: Arc<Mutex<Running>>,
    /// Told when the launcher has ended.
    pub(super) ended: Arc<Notify>,
    /// The launch whose record this round writes.
    writes: Option<(Step, Launch)>,
    /// The zone that lacks a backend, and since when.
    lacking: Option<(Zone, Instant)>,
    /// When the record in progress was first seen, by its revision.
    seen: Option<(u64, Instant)>,
    /// The last failure: the backend, why, how many there were, and when to try again.
    failure: Option<Failure>,
    /// Whether the next round has to read the records.
    is_pending: bool,
}

#[derive(Clone, Debug, Default)]
enum Running {
    #[default]
    Nothing,
    /// The launcher runs.
    Launcher(Launch),
    /// It has ended, and the record does not say so yet.
    Ended(Launch, Result<BTreeSet<SocketAddr>, String>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The record is written, and then the launcher runs.
    Start,
    /// The record gets its addresses, or is deleted.
    End,
}

#[derive(Clone, Debug)]
struct Failure {
    backend: Label,
    reason: String,
    count: u32,
    retry_at: Instant,
}

/// What a round knows.
pub(super) struct Known<'a> {
    pub(super) backends: &'a BTreeMap<Label, GatewayBackend>,
    /// Revisions of the backends without replicas.
    pub(super) launching: &'a BTreeMap<Label, u64>,
    /// The service that lacks a backend in its home zone.
    pub(super) lacking: Option<(&'a ServiceName, &'a Zone)>,
    /// The replicas that report.
    pub(super) reporting: &'a BTreeSet<SocketAddr>,
    pub(super) now: Instant,
}

impl LaunchRounds {
    pub(super) fn new(launcher: Option<GatewayLauncher>) -> Self {
        let (running, ended, writes, lacking, seen, failure, is_pending) = Default::default();
        Self { launcher, running, ended, writes, lacking, seen, failure, is_pending }
    }

    /// Whether a round has something to decide, although no record has changed.
    pub(super) fn is_pending(&self) -> bool {
        self.is_pending
    }

    /// The record to write, and what operators have to know.
    pub(super) fn round(&mut self, known: &Known<'_>) -> (Option<Write>, Vec<Refusal>) {
        self.writes = None;
        let Some(limit) = self.launcher.as_ref().map(|launcher| launcher.time_limit) else {
            return Default::default();
        };
        let write = match known.launching.first_key_value() {
            Some((name, revision)) => {
                self.lacking = None;
                self.go_on(known, (name, *revision), limit)
            }
            None => {
                self.seen = None;
                *self.running() = Running::Nothing;
                self.begin(known)
            }
        };
        self.is_pending = !known.launching.is_empty() || self.lacking.is_some();
        let silent = self.silent_in(known).map(|name| Refusal {
            subject: format!("launch of {name}"),
            reason: "a launcher has started it, and not all of its replicas report; no other backend is started in its zone meanwhile; repair or delete it".to_owned(),
        });
        let failure = self.failure.as_ref().map(|failure| Refusal {
            subject: format!("launch of {}", failure.backend),
            reason: failure.reason.clone(),
        });
        (write, silent.into_iter().chain(failure).collect())
    }

    /// Begins a launch if a service has lacked a backend for long enough.
    fn begin(&mut self, known: &Known<'_>) -> Option<Write> {
        let Some((service, zone)) = known.lacking else {
            (self.lacking, self.failure) = (None, None);
            return None;
        };
        let before = self.lacking.take().filter(|(before, _)| before == zone);
        let (_, since) = self.lacking.insert(before.unwrap_or_else(|| (zone.clone(), known.now)));
        let is_due = known.now.duration_since(*since) >= LACKING;
        if !is_due || self.silent_in(known).is_some() {
            return None;
        }
        let named = |number: usize| Label::new(format!("{PREFIX}{number}")).ok();
        let backend =
            (1..).find_map(|number| named(number).filter(|name| !known.backends.contains_key(name)))?;
        let launch = Launch { backend, zone: zone.clone(), service: Some(service.clone()) };
        Some(self.start(launch, Expect::Absent))
    }

    /// Goes on with the launch whose record is there.
    fn go_on(
        &mut self,
        known: &Known<'_>,
        (name, revision): (&Label, u64),
        limit: Duration,
    ) -> Option<Write> {
        let backend = known.backends.get(name)?;
        let expected = Expect::Revision(revision);
        let launch = Launch {
            backend: name.clone(),
            zone: backend.zone.clone(),
            service: known.lacking.map(|(service, _)| service.clone()),
        };
        match self.running_for(name) {
            Running::Launcher(_) => return None,
            Running::Ended(launch, result) => return self.end((launch, result), (backend, expected), known),
            Running::Nothing => {}
        }
        if let Some(failure) = self.failure.as_ref().filter(|failure| failure.backend == *name) {
            if known.now < failure.retry_at {
                return None;
            }
            if known.lacking.is_none() {
                self.writes = Some((Step::End, launch.clone()));
                return Some(write(&launch, expected, None));
            }
            return Some(self.start(launch, expected));
        }
        // Another control plane, or this one before it started anew, has begun it.
        let seen = self.seen.filter(|(seen, _)| *seen == revision).unwrap_or((revision, known.now));
        self.seen = Some(seen);
        (known.now.duration_since(seen.1) >= limit).then(|| self.start(launch, expected))
    }

    /// Completes the record with what the launcher has printed, or notes the failure.
    fn end(
        &mut self,
        (launch, result): (Launch, Result<BTreeSet<SocketAddr>, String>),
        (backend, expected): (&GatewayBackend, Expect),
        known: &Known<'_>,
    ) -> Option<Write> {
        match result.and_then(|replicas| checked(replicas, backend, known.backends)) {
            Ok(completed) => {
                let made = write(&launch, expected, Some(completed));
                // Its output is kept until the record is written, which may take several rounds.
                self.writes = Some((Step::End, launch));
                Some(made)
            }
            Err(reason) => {
                *self.running() = Running::Nothing;
                self.failed(&launch, &reason, known.now);
                None
            }
        }
    }

    /// Writes the record of a backend, whereupon the launcher runs.
    fn start(&mut self, launch: Launch, expected: Expect) -> Write {
        let backend = GatewayBackend {
            zone: launch.zone.clone(),
            capacity: GatewayBackend::DEFAULT_CAPACITY,
            replicas: BTreeSet::new(),
            is_closed: false,
            is_sandbox: false,
        };
        let made = write(&launch, expected, Some(backend));
        self.writes = Some((Step::Start, launch));
        made
    }

    fn failed(&mut self, launch: &Launch, reason: &str, now: Instant) {
        let count = self.failure.as_ref().map_or(0, |failure| failure.count).saturating_add(1);
        let pause = FIRST_PAUSE.saturating_mul(2_u32.saturating_pow(count - 1)).min(LONGEST_PAUSE);
        let Launch { backend, zone, service } = launch;
        let of = service.as_ref().map(|service| format!(" for {service}")).unwrap_or_default();
        let reason = format!(
            "the launcher failed to start it in zone {zone}{of}, and runs again after a pause: {reason}"
        );
        tracing::warn!(%backend, %zone, reason, "the launcher of gateway backends failed");
        self.failure = Some(Failure { backend: backend.clone(), reason, count, retry_at: now + pause });
    }

    /// A launched backend of the zone that lacks one, while a replica of it does not report.
    fn silent_in<'a>(&self, known: &Known<'a>) -> Option<&'a Label> {
        let (_, zone) = known.lacking?;
        let is_silent = |(name, backend): &(&Label, &GatewayBackend)| {
            name.as_str().starts_with(PREFIX)
                && backend.zone == *zone
                && !backend.replicas.is_empty()
                && !backend.replicas.is_subset(known.reporting)
        };
        known.backends.iter().find(is_silent).map(|(name, _)| name)
    }

    /// The record of a launch was written: the launcher runs, or the launch is over.
    pub(super) fn written(&mut self, subject: &str) {
        let Some((step, launch)) = self.writes.take_if(|(_, launch)| subject_of(launch) == subject) else {
            return;
        };
        if step == Step::End {
            self.failure = None;
            *self.running() = Running::Nothing;
            tracing::info!(backend = %launch.backend, "the launch of a backend is over");
            return;
        }
        let Some(launcher) = self.launcher.clone() else { return };
        let Launch { backend, zone, .. } = &launch;
        tracing::info!(%backend, %zone, service = ?launch.service, "the launcher starts a backend");
        *self.running() = Running::Launcher(launch.clone());
        let (running, ended) = (Arc::clone(&self.running), Arc::clone(&self.ended));
        tokio::spawn(async move {
            let result = launcher.launch(&launch).await;
            *running.lock().unwrap_or_else(PoisonError::into_inner) = Running::Ended(launch, result);
            ended.notify_one();
        });
    }

    /// What runs for this backend.
    fn running_for(&self, backend: &Label) -> Running {
        let running = self.running();
        match &*running {
            Running::Launcher(launch) | Running::Ended(launch, _) if launch.backend == *backend => {
                running.clone()
            }
            _ => Running::Nothing,
        }
    }

    fn running(&self) -> MutexGuard<'_, Running> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The record with the addresses that the launcher has printed.
fn checked(
    replicas: BTreeSet<SocketAddr>,
    backend: &GatewayBackend,
    backends: &BTreeMap<Label, GatewayBackend>,
) -> Result<GatewayBackend, String> {
    let mut all = backends.iter();
    let taken = all.find_map(|(name, one)| Some((name, one.replicas.intersection(&replicas).next()?)));
    if let Some((name, address)) = taken {
        return Err(format!("it printed {address}, which is a replica of {name}"));
    }
    let backend = GatewayBackend { replicas, ..backend.clone() };
    backend.validate().map_err(|invalid| invalid.to_string())?;
    Ok(backend)
}

fn subject_of(launch: &Launch) -> String {
    format!("launch of {}", launch.backend)
}

/// The write of a backend's record, or its deletion.
fn write(launch: &Launch, expected: Expect, backend: Option<GatewayBackend>) -> Write {
    let key = RecordKey::GatewayBackend(launch.backend.clone()).to_string();
    let (reason, op) = match backend {
        Some(backend) => {
            let reason = match backend.replicas.is_empty() {
                true => "a service grows, and no backend has room, so that the launcher starts one",
                false => "the launcher has started its replicas",
            };
            (reason, Op::put(key, record_encoding::encode(&backend.into())))
        }
        None => ("the launcher did not start it, and no service needs it any more", Op::delete(key)),
    };
    Write { subject: subject_of(launch), reason, ops: vec![op.expecting(expected)] }
}

#[cfg(test)]
mod tests;
