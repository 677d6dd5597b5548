//! Keeps an endpoint registered while its program runs, across failures of the control plane.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use fairmesh_model::{EndpointState, Location};
use fairmesh_wire::v1::DrainResponse;
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout, timeout_at},
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use super::{
    Registration,
    backoff::{Backoff, jittered},
    registry_client::{RegistryClient, RegistryError, instance_ref},
};
use crate::Outstanding;

/// Minimum time after which a failed request counts as having reached the registry.
const IN_FLIGHT: Duration = Duration::from_millis(100);

/// Time limit of deregistration. If it fails, the lease expires.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(2);

/// Time after which failed registrations or renewals are a warning.
const WARNING_AFTER: Duration = Duration::from_secs(5);

/// State of a registration at the registry.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RegistrationState {
    /// The first attempt is in flight.
    Registering,
    /// The registry has the endpoint in this state.
    Registered(EndpointState),
    /// The last attempt failed for this reason, and is retried.
    Failing(String),
}

/// Result of a drain.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Drained {
    /// All callers have applied the removal of this endpoint, and their calls have ended.
    CallersMoved,
    /// All callers have moved, but these calls and streams were unfinished at the drain deadline and were cut off.
    Unfinished(Outstanding),
    /// These callers had not moved at the deadline.
    Behind(Vec<String>),
    /// The registry could not determine whether callers have moved, for this reason. Callers notice when connections
    /// close.
    Unreported(String),
}

/// Keeps an endpoint registered. A task renews its lease three times per term, registers the endpoint again if the
/// registry does not know it, and retries with growing pauses (50 ms to 5 s) while the registry is unreachable.
///
/// Dropping this value stops the task, and the lease then expires. [`leave`](Self::leave) deregisters the endpoint at
/// once.
#[derive(Debug)]
pub struct Lease {
    target: Arc<LeaseTarget>,
    wanted: watch::Sender<EndpointState>,
    /// Cancelled when the endpoint must be registered.
    begins: CancellationToken,
    stop: CancellationToken,
    task: tokio::sync::Mutex<Option<AbortOnDropHandle<()>>>,
}

#[derive(Debug)]
struct LeaseTarget {
    registry: Arc<RegistryClient>,
    registration: Registration,
    registration_state: watch::Sender<RegistrationState>,
    /// Whether the registry has responded to the drain.
    drained: AtomicBool,
}

impl Lease {
    /// Starts to keep `registration` in `state`. Must be called within a tokio runtime.
    pub fn keep(registry: Arc<RegistryClient>, registration: Registration, state: EndpointState) -> Self {
        let lease = Self::keep_later(registry, registration, state);
        lease.begin();
        lease
    }

    /// Keeps `registration` in `state` from the call of [`begin`](Self::begin) on.
    pub(crate) fn keep_later(
        registry: Arc<RegistryClient>,
        registration: Registration,
        state: EndpointState,
    ) -> Self {
        let registration_state = watch::Sender::new(RegistrationState::Registering);
        let drained = AtomicBool::new(false);
        let target = Arc::new(LeaseTarget { registry, registration, registration_state, drained });
        let (wanted, wanted_receiver) = watch::channel(state);
        let (begins, stop) = (CancellationToken::new(), CancellationToken::new());
        let lease_task = LeaseTask {
            target: Arc::clone(&target),
            wanted: wanted_receiver,
            acknowledged: None,
            location: None,
            backoff: Backoff::default(),
            failing_since: None,
            is_warned: false,
        };
        let task = tokio::spawn(lease_task.run(begins.clone(), stop.clone()));
        let task = tokio::sync::Mutex::new(Some(AbortOnDropHandle::new(task)));
        Self { target, wanted, begins, stop, task }
    }

    /// Registers the endpoint.
    pub(crate) fn begin(&self) {
        self.begins.cancel();
    }

    /// Whether registration of the endpoint has begun.
    pub(crate) fn has_begun(&self) -> bool {
        self.begins.is_cancelled()
    }

    /// Stops renewing, and leaves the registration to another process.
    pub(crate) async fn hand_over(&self) {
        self.stop.cancel();
        self.task.lock().await.take();
    }

    /// Sets the state of the endpoint. [`EndpointState::Lost`] also stops renewals, which would revive the endpoint. A
    /// draining endpoint stays draining.
    pub fn set(&self, state: EndpointState) {
        self.wanted.send_if_modified(|wanted| {
            *wanted != EndpointState::Draining && std::mem::replace(wanted, state) != state
        });
    }

    /// Returns the state of the registration, with notification of changes.
    pub fn registration_state(&self) -> watch::Receiver<RegistrationState> {
        self.target.registration_state.subscribe()
    }

    /// Asks callers to move, and waits until they have moved, at most `within`. If the registry was never reached,
    /// retries for a fifth of that time, since callers also move when connections close, only less smoothly. If the
    /// registry was lost while it waited for callers, retries as long as there is time.
    ///
    /// Only the request counts as having reached the registry: if connecting takes long, the registry is away.
    pub async fn drain(&self, within: Duration) -> Drained {
        if !self.has_begun() {
            // Callers do not know this process, since it was never registered.
            return Drained::CallersMoved;
        }
        self.set(EndpointState::Draining);
        let end = Instant::now() + within;
        let mut retry_until = Instant::now() + within / 5;
        let mut backoff = Backoff::default();
        loop {
            let (asked, in_flight) = self.try_drain(retry_until, end).await;
            let error = match asked {
                Ok(response) => return self.drained_by(response),
                // Callers do not know an endpoint that the registry does not know.
                Err(error) if error.is_unknown() => return Drained::CallersMoved,
                Err(error) => error,
            };
            if in_flight >= IN_FLIGHT {
                (retry_until, backoff) = (end, Backoff::default());
            }
            let pause = backoff.next();
            if error.is_final() || Instant::now() + pause >= retry_until {
                return Drained::Unreported(error.to_string());
            }
            sleep(pause).await;
        }
    }

    /// Asks the registry once, over a connection that must be open by `connect_by`. Also returns how long the request
    /// was in flight.
    async fn try_drain(
        &self,
        connect_by: Instant,
        end: Instant,
    ) -> (Result<DrainResponse, RegistryError>, Duration) {
        let registry = &self.target.registry;
        let connection = match registry.connect_by(connect_by).await {
            Ok(connection) => connection,
            Err(error) => return (Err(error), Duration::ZERO),
        };
        let asked_at = Instant::now();
        let left = end.saturating_duration_since(asked_at);
        let asked = registry.drain(connection, self.target.instance(), left).await;
        (asked, asked_at.elapsed())
    }

    fn drained_by(&self, response: DrainResponse) -> Drained {
        self.target.drained.store(true, Ordering::Relaxed);
        self.target.set_state(RegistrationState::Registered(EndpointState::Draining));
        match response.callers_moved {
            true => Drained::CallersMoved,
            false => Drained::Behind(response.behind),
        }
    }

    /// Stops renewing and deregisters the endpoint, retrying for at most 2 s. Further calls have no effect.
    ///
    /// # Errors
    /// The registry refuses the request or cannot be reached. The lease then expires by itself.
    pub async fn leave(&self) -> Result<(), RegistryError> {
        self.stop.cancel();
        let task = self.task.lock().await.take();
        let Some(task) = task.filter(|_| self.has_begun()) else {
            return Ok(());
        };
        let end = Instant::now() + LEAVE_TIMEOUT;
        // A registration in flight must not arrive after the deregistration.
        let _ = timeout_at(end, task).await;
        let mut backoff = Backoff::default();
        loop {
            let left = end.saturating_duration_since(Instant::now()).max(Duration::from_millis(100));
            let error = match timeout(left, self.target.registry.deregister(self.target.instance())).await {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(error)) if error.is_unknown() => return Ok(()),
                Ok(Err(error)) => error,
                Err(_) => {
                    let address = self.target.registry.addresses().first().cloned();
                    return match address {
                        Some(address) => Err(RegistryError::Timeout { address, after: LEAVE_TIMEOUT }),
                        None => Ok(()),
                    };
                }
            };
            let pause = backoff.next();
            if error.is_final() || Instant::now() + pause >= end {
                return Err(error);
            }
            sleep(pause).await;
        }
    }
}

impl LeaseTarget {
    fn instance(&self) -> fairmesh_wire::v1::InstanceRef {
        instance_ref(&self.registration.service, &self.registration.instance)
    }

    fn set_state(&self, registration_state: RegistrationState) {
        self.registration_state.send_if_modified(|now| {
            // The task may report the state from before the drain, although the registry already has the drain's state.
            let is_late = self.drained.load(Ordering::Relaxed)
                && matches!(&registration_state, RegistrationState::Registered(state) if *state != EndpointState::Draining);
            let changed = !is_late && *now != registration_state;
            if changed {
                let Registration { service, instance, .. } = &self.registration;
                match &registration_state {
                    RegistrationState::Failing(problem) => {
                        tracing::info!(%service, %instance, problem, "could not register or renew yet; retrying");
                    }
                    other => tracing::info!(%service, %instance, state = ?other, "registration changed"),
                }
                *now = registration_state;
            }
            changed
        });
    }
}

/// The task of a lease: each step updates the registry, or renews the lease.
struct LeaseTask {
    target: Arc<LeaseTarget>,
    wanted: watch::Receiver<EndpointState>,
    /// The state that the registry has; `None` if the endpoint must be registered again.
    acknowledged: Option<EndpointState>,
    /// The location that the agent reported when the endpoint was registered; `None` if the program has one of its own.
    location: Option<Location>,
    backoff: Backoff,
    /// Time of the first failed attempt since the last success.
    failing_since: Option<Instant>,
    /// Whether the log has a warning of these failures.
    is_warned: bool,
}

impl LeaseTask {
    async fn run(mut self, begins: CancellationToken, stop: CancellationToken) {
        tokio::select! {
            () = stop.cancelled() => {}
            () = begins.cancelled() => {}
        }
        while !stop.is_cancelled() {
            let pause = self.step().await;
            tokio::select! {
                () = stop.cancelled() => {}
                () = sleep(pause) => {}
                // The sender is dropped only with the lease, and then the task is stopped as well.
                Ok(()) = self.wanted.changed() => {}
            }
        }
    }

    /// Performs the step that is due. Returns the pause until the next step.
    async fn step(&mut self) -> Duration {
        let wanted = *self.wanted.borrow_and_update();
        match self.reconcile(wanted).await {
            Ok(acknowledged) => {
                self.acknowledged = acknowledged;
                let Some(acknowledged) = acknowledged else { return Duration::ZERO };
                self.backoff = Backoff::default();
                (self.failing_since, self.is_warned) = (None, false);
                self.target.set_state(RegistrationState::Registered(acknowledged));
                jittered(self.target.registration.lease / 3)
            }
            Err(error) => {
                if error.is_unknown() {
                    self.acknowledged = None;
                }
                self.target.set_state(RegistrationState::Failing(error.to_string()));
                self.warn_if_lasting(&error);
                self.backoff.next()
            }
        }
    }

    /// Warns once of failures that a retry does not mend, or that last. The processes of a machine start in any order,
    /// so a first failure is no warning.
    fn warn_if_lasting(&mut self, error: &RegistryError) {
        let since = *self.failing_since.get_or_insert_with(Instant::now);
        let lasts = error.is_final() || since.elapsed() >= WARNING_AFTER;
        if lasts && !std::mem::replace(&mut self.is_warned, true) {
            let Registration { service, instance, .. } = &self.target.registration;
            tracing::warn!(%service, %instance, problem = %error, "the endpoint cannot be registered or renewed; retrying");
        }
    }

    /// Brings the registry to `wanted`. Returns the state that the registry then has; `None` if it does not know the
    /// endpoint.
    async fn reconcile(&mut self, wanted: EndpointState) -> Result<Option<EndpointState>, RegistryError> {
        let target = Arc::clone(&self.target);
        let LeaseTarget { registry, registration, drained, .. } = &*target;
        let instance = target.instance();
        match self.acknowledged {
            // A lost endpoint may have been removed since; registering handles both cases.
            None | Some(EndpointState::Lost)
                if wanted != EndpointState::Lost || self.acknowledged.is_none() =>
            {
                let location = match &registration.location {
                    Some(location) => location.clone(),
                    None => self.agent_location(registry).await?,
                };
                registry.register(registration.message(location, wanted)).await?;
            }
            Some(acknowledged) if acknowledged == wanted => {
                if wanted != EndpointState::Lost && !registry.renew(instance).await? {
                    return Ok(None);
                }
                let may_move = matches!(wanted, EndpointState::Starting | EndpointState::Serving);
                if may_move && self.has_moved(registry).await {
                    return Ok(None);
                }
            }
            // The drain itself writes this state, and reports it once the registry has responded.
            Some(acknowledged) if wanted == EndpointState::Draining => {
                if !registry.renew(instance).await? {
                    return Ok(None);
                }
                let is_drained = drained.load(Ordering::Relaxed);
                return Ok(Some(if is_drained { wanted } else { acknowledged }));
            }
            _ => {
                let state = fairmesh_wire::v1::endpoint::State::from(wanted).into();
                let report = fairmesh_wire::v1::StateReport { instance: Some(instance), state };
                registry.report(report).await?;
            }
        }
        Ok(Some(wanted))
    }

    /// The location that the agent reports now, which the endpoint gets.
    async fn agent_location(&mut self, registry: &RegistryClient) -> Result<Location, RegistryError> {
        let present = registry.present_location().await?;
        let location = present.ok_or(RegistryError::NoRegion)?;
        self.location = Some(location.clone());
        Ok(location)
    }

    /// Whether the agent was restarted at another location than the endpoint was registered with. An agent that does not
    /// answer has not moved.
    async fn has_moved(&self, registry: &RegistryClient) -> bool {
        let Some(registered) = &self.location else { return false };
        match registry.present_location().await {
            Ok(Some(present)) if present != *registered => {
                let Registration { service, instance, .. } = &self.target.registration;
                let (region, zone) = (&present.region, present.zone.as_ref().map(ToString::to_string));
                tracing::info!(%service, %instance, %region, zone, "the agent has another location; registering again");
                true
            }
            _ => false,
        }
    }
}
