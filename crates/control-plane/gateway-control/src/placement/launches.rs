//! Decides when a launcher starts a backend: where a service grows and no backend has room (Canal Mesh, section 4.3: *New*).
//!
//! The record of the backend is written first, without replicas, and again before each further attempt, so that only the control plane with
//! the writer lease runs the launcher. The name and the zone are in the record: a control plane that takes over runs the launcher for the same
//! backend, after the time that a launcher may take, since its predecessor's launcher may still run. Once the launcher has printed the addresses
//! of the replicas, they complete the record, and the backend gets services once it reports. Rejected: the launcher writes the record itself.
//! It would need a certificate of an administrator, and an answer that is lost would start a second backend.
//!
//! One command runs at a time. While it pauses after a failure, a backend of another zone may be started. While a started backend does not
//! report, no other is started in its zone, so that a service that takes backends down starts no further ones.

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
use tokio::{sync::Notify, task::AbortHandle, time::Instant};

use crate::launcher::{GatewayLauncher, Launch};

/// How long a service lacks a backend before one is started.
const LACKING: Duration = Duration::from_secs(10);
/// Pause after the first failure; it doubles with each further one.
const FIRST_PAUSE: Duration = Duration::from_secs(10);
/// The longest pause after failures.
const LONGEST_PAUSE: Duration = Duration::from_mins(10);
/// The names of launched backends: this, and the smallest free number from 1 on.
const PREFIX: &str = "launched-";

/// Decides on launches, and remembers those in progress.
#[derive(Clone, Debug)]
pub(super) struct LaunchRounds {
    launcher: Option<GatewayLauncher>,
    /// The command; shared with the task that runs it, and with the clone that follows a panic.
    command: Arc<Mutex<LaunchCommand>>,
    /// Notified when the command has ended.
    pub(super) ended: Arc<Notify>,
    /// The launch whose record this round writes.
    writes: Option<(Step, Launch)>,
    /// Zones that lack a backend, and since when.
    lacking: BTreeMap<Zone, Instant>,
    /// When each record in progress was first seen, by its revision.
    seen: BTreeMap<Label, (u64, Instant)>,
    /// The last failure of each record in progress.
    failures: BTreeMap<Label, Failure>,
    /// Whether the next round has to read the records.
    is_pending: bool,
}

/// The launcher's command.
#[derive(Clone, Debug, Default)]
enum LaunchCommand {
    #[default]
    Idle,
    Runs(Launch, AbortHandle),
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
    reason: String,
    count: u32,
    retry_at: Instant,
}

/// The records and loads by which a round decides.
pub(super) struct LaunchFacts<'a> {
    pub(super) backends: &'a BTreeMap<Label, GatewayBackend>,
    /// Revisions of the backends without replicas.
    pub(super) launching: &'a BTreeMap<Label, u64>,
    /// Home zones that lack a backend, each with a service that needs it.
    pub(super) lacking: &'a BTreeMap<&'a Zone, &'a ServiceName>,
    /// The replicas that report.
    pub(super) reporting: &'a BTreeSet<SocketAddr>,
    pub(super) now: Instant,
}

impl LaunchRounds {
    pub(super) fn new(launcher: Option<GatewayLauncher>) -> Self {
        let (command, ended, writes, lacking, seen, failures, is_pending) = Default::default();
        Self { launcher, command, ended, writes, lacking, seen, failures, is_pending }
    }

    /// Whether a round has something to decide, although no record has changed.
    pub(super) fn is_pending(&self) -> bool {
        self.is_pending
    }

    /// The record to write, and what operators have to know.
    pub(super) fn round(&mut self, facts: &LaunchFacts<'_>) -> (Option<Write>, Vec<Refusal>) {
        self.writes = None;
        let Some(limit) = self.launcher.as_ref().map(|launcher| launcher.time_limit) else {
            return Default::default();
        };
        self.forget_deleted(facts);
        self.note_lacking(facts);
        let mut write = None;
        for (name, revision) in facts.launching {
            write = write.or_else(|| self.continue_launch(facts, (name, *revision), limit));
        }
        let write = write.or_else(|| self.begin_launch(facts));
        self.is_pending = !facts.launching.is_empty() || !self.lacking.is_empty();
        (write, self.refusals(facts))
    }

    /// Forgets launches whose records are deleted or complete. A command that still runs is killed with its process group, and its zone
    /// counts as lacking a backend from now on: another command may be started then.
    fn forget_deleted(&mut self, facts: &LaunchFacts<'_>) {
        self.failures.retain(|name, _| facts.launching.contains_key(name));
        self.seen.retain(|name, _| facts.launching.contains_key(name));
        let is_known = |launch: &Launch| facts.launching.contains_key(&launch.backend);
        let forgotten = match &mut *self.command() {
            LaunchCommand::Runs(launch, _) | LaunchCommand::Ended(launch, _) if is_known(launch) => return,
            command => std::mem::take(command),
        };
        if let LaunchCommand::Runs(launch, task) = forgotten {
            tracing::warn!(backend = %launch.backend, "the record of a launch is deleted or has replicas: its command is killed");
            task.abort();
            self.lacking.remove(&launch.zone);
        }
    }

    /// Notes since when zones lack a backend, without those in which one is being started.
    fn note_lacking(&mut self, facts: &LaunchFacts<'_>) {
        let zones = facts.launching.keys().filter_map(|name| facts.backends.get(name));
        let launching: BTreeSet<&Zone> = zones.map(|backend| &backend.zone).collect();
        let lacking = facts.lacking.keys().filter(|zone| !launching.contains(*zone));
        let since = |zone: &Zone| self.lacking.get(zone).copied().unwrap_or(facts.now);
        self.lacking = lacking.map(|zone| ((*zone).clone(), since(zone))).collect();
    }

    /// Begins a launch in the first zone that has lacked a backend for long enough and has no silent one, unless a command runs or
    /// may run.
    fn begin_launch(&mut self, facts: &LaunchFacts<'_>) -> Option<Write> {
        let is_idle = matches!(*self.command(), LaunchCommand::Idle);
        if !is_idle || !facts.launching.keys().all(|name| self.failures.contains_key(name)) {
            return None;
        }
        let is_due = |(zone, since): &(&Zone, &Instant)| {
            facts.now.duration_since(**since) >= LACKING && silent_in(facts, zone).is_none()
        };
        let zone = self.lacking.iter().find(is_due)?.0.clone();
        let service = facts.lacking.get(&zone).copied().cloned();
        let named = |number: usize| Label::new(format!("{PREFIX}{number}")).ok();
        let backend =
            (1..).find_map(|number| named(number).filter(|name| !facts.backends.contains_key(name)))?;
        Some(self.start(Launch { backend, zone, service }, Expect::Absent))
    }

    /// Continues the launch of this record.
    fn continue_launch(
        &mut self,
        facts: &LaunchFacts<'_>,
        (name, revision): (&Label, u64),
        limit: Duration,
    ) -> Option<Write> {
        let backend = facts.backends.get(name)?;
        let expected = Expect::Revision(revision);
        let command = self.command().clone();
        match command {
            LaunchCommand::Ended(launch, result) if launch.backend == *name => {
                return match result.and_then(|replicas| checked(replicas, backend, facts.backends)) {
                    Ok(completed) => Some(self.complete(launch, completed, expected)),
                    Err(reason) => {
                        self.fail(&launch, &reason, facts.now);
                        None
                    }
                };
            }
            LaunchCommand::Runs(..) | LaunchCommand::Ended(..) => return None,
            LaunchCommand::Idle => {}
        }
        let zone = backend.zone.clone();
        let service = facts.lacking.get(&zone).copied().cloned();
        let launch = Launch { backend: name.clone(), zone, service };
        if let Some(failure) = self.failures.get(name) {
            if facts.now < failure.retry_at {
                return None;
            }
            if launch.service.is_none() {
                self.writes = Some((Step::End, launch.clone()));
                return Some(write(&launch, expected, None));
            }
            return Some(self.start(launch, expected));
        }
        // Another control plane, or this one before it started anew, has begun it.
        let seen = self.seen.get(name).copied().filter(|(seen, _)| *seen == revision);
        let (_, since) = seen.unwrap_or((revision, facts.now));
        self.seen.insert(name.clone(), (revision, since));
        (facts.now.duration_since(since) >= limit).then(|| self.start(launch, expected))
    }

    /// Completes the record of a launch. What the command has printed is kept until the record is written, which may take several
    /// rounds.
    fn complete(&mut self, launch: Launch, completed: GatewayBackend, expected: Expect) -> Write {
        let made = write(&launch, expected, Some(completed));
        self.writes = Some((Step::End, launch));
        made
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

    /// Notes a failure, and when to try again.
    fn fail(&mut self, launch: &Launch, reason: &str, now: Instant) {
        *self.command() = LaunchCommand::Idle;
        let Launch { backend, zone, service } = launch;
        let count = self.failures.get(backend).map_or(0, |failure| failure.count).saturating_add(1);
        let pause = FIRST_PAUSE.saturating_mul(2_u32.saturating_pow(count - 1)).min(LONGEST_PAUSE);
        let of = service.as_ref().map(|service| format!(" for {service}")).unwrap_or_default();
        let reason = format!(
            "the launcher failed to start it in zone {zone}{of}, and runs again after a pause: {reason}"
        );
        tracing::warn!(%backend, %zone, reason, "the launcher of gateway backends failed");
        self.failures.insert(backend.clone(), Failure { reason, count, retry_at: now + pause });
    }

    fn refusals(&self, facts: &LaunchFacts<'_>) -> Vec<Refusal> {
        let silent = facts.lacking.keys().filter_map(|zone| silent_in(facts, zone)).map(|name| Refusal {
            subject: format!("launch of {name}"),
            reason: "a launcher has started it, and not all of its replicas report; no other backend is started in its zone meanwhile; repair or delete it".to_owned(),
        });
        let failures = self.failures.iter().map(|(backend, failure)| Refusal {
            subject: format!("launch of {backend}"),
            reason: failure.reason.clone(),
        });
        silent.chain(failures).collect()
    }

    /// The record of a launch was written: the launcher runs, or the launch is over.
    pub(super) fn written(&mut self, subject: &str) {
        let Some((step, launch)) = self.writes.take_if(|(_, launch)| subject_of(launch) == subject) else {
            return;
        };
        match step {
            Step::Start => self.run(launch),
            Step::End => {
                self.failures.remove(&launch.backend);
                *self.command() = LaunchCommand::Idle;
                tracing::info!(backend = %launch.backend, "the launch of a backend is over");
            }
        }
    }

    /// Runs the launcher's command.
    fn run(&self, launch: Launch) {
        let Some(launcher) = self.launcher.clone() else { return };
        let Launch { backend, zone, .. } = &launch;
        tracing::info!(%backend, %zone, service = ?launch.service, "the launcher starts a backend");
        let (shared, ended) = (Arc::clone(&self.command), Arc::clone(&self.ended));
        // Locked until the task is known, which ends with another state.
        let mut command = self.command();
        let runs = launch.clone();
        let task = tokio::spawn(async move {
            let result = launcher.launch(&launch).await;
            *shared.lock().unwrap_or_else(PoisonError::into_inner) = LaunchCommand::Ended(launch, result);
            ended.notify_one();
        });
        *command = LaunchCommand::Runs(runs, task.abort_handle());
    }

    fn command(&self) -> MutexGuard<'_, LaunchCommand> {
        self.command.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A launched backend of this zone while a replica of it does not report.
fn silent_in<'a>(facts: &LaunchFacts<'a>, zone: &Zone) -> Option<&'a Label> {
    let is_silent = |(name, backend): &(&Label, &GatewayBackend)| {
        name.as_str().starts_with(PREFIX)
            && backend.zone == *zone
            && !backend.replicas.is_empty()
            && !backend.replicas.is_subset(facts.reporting)
    };
    facts.backends.iter().find(is_silent).map(|(name, _)| name)
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
