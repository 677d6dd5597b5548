//! Keeps one endpoint registered for as long as its program runs, whatever happens to the control plane.

use std::{sync::Arc, time::Duration};

use fairmesh_model::EndpointState;
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout, timeout_at},
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use super::{Link, LinkError, Registration, backoff::Backoff, backoff::jittered, link::instance_ref};

/// How long leaving may take: when it fails, the lease runs out by itself.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(2);

/// How an endpoint stands with the registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// The first attempt is under way.
    Announcing,
    /// The registry holds it in this state.
    Registered(EndpointState),
    /// The last attempt failed for this reason; it is tried again.
    Failing(String),
}

/// How a drain ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Drained {
    /// Every caller decides without this endpoint.
    CallersMoved,
    /// These had not moved when the time was up.
    Behind(Vec<String>),
    /// The registry could not be told, for this reason: callers notice when connections close.
    Untold(String),
}

/// An endpoint that is kept registered: a task renews its lease three times a term, announces it anew where the
/// registry has forgotten it, and goes on trying with growing pauses (50 ms to 5 s) while nobody answers.
///
/// Dropping it stops the task; the lease then runs out. [`leave`](Self::leave) takes the endpoint out at once.
#[derive(Debug)]
pub struct Lease {
    core: Arc<Core>,
    wanted: watch::Sender<EndpointState>,
    standing: watch::Receiver<Standing>,
    stop: CancellationToken,
    task: tokio::sync::Mutex<Option<AbortOnDropHandle<()>>>,
}

#[derive(Debug)]
struct Core {
    link: Arc<Link>,
    registration: Registration,
}

impl Lease {
    /// Starts to keep `registration` in `state`. Must be called within a tokio runtime.
    pub fn keep(link: Arc<Link>, registration: Registration, state: EndpointState) -> Self {
        let core = Arc::new(Core { link, registration });
        let (wanted, wanted_seen) = watch::channel(state);
        let (standing_told, standing) = watch::channel(Standing::Announcing);
        let stop = CancellationToken::new();
        let keeper = Keeper {
            core: Arc::clone(&core),
            wanted: wanted_seen,
            standing: standing_told,
            told: None,
            backoff: Backoff::default(),
        };
        let task = tokio::spawn(keeper.run(stop.clone()));
        let task = tokio::sync::Mutex::new(Some(AbortOnDropHandle::new(task)));
        Self { core, wanted, standing, stop, task }
    }

    /// The state that the registry is to hold from now on. [`EndpointState::Lost`] also stops renewals, which would
    /// bring the endpoint back. Once it drains, it stays so.
    pub fn set(&self, state: EndpointState) {
        self.wanted.send_if_modified(|wanted| {
            *wanted != EndpointState::Draining && std::mem::replace(wanted, state) != state
        });
    }

    /// How it stands, and every change of that.
    pub fn standing(&self) -> watch::Receiver<Standing> {
        self.standing.clone()
    }

    /// Tells callers to leave and waits until they have, at most `within`. While the registry is away it is asked again
    /// for a fifth of that time: callers whose connections close move without it, too, only less smoothly.
    pub async fn drain(&self, within: Duration) -> Drained {
        self.set(EndpointState::Draining);
        let end = Instant::now() + within;
        let patience = Instant::now() + within / 5;
        let mut backoff = Backoff::default();
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let error = match self.core.link.drain(self.core.instance(), left).await {
                Ok(answer) if answer.callers_moved => return Drained::CallersMoved,
                Ok(answer) => return Drained::Behind(answer.behind),
                // Whom the registry does not know, no caller finds.
                Err(error) if error.is_unknown() => return Drained::CallersMoved,
                Err(error) => error,
            };
            let pause = backoff.next();
            if error.is_final() || Instant::now() + pause >= patience {
                return Drained::Untold(error.to_string());
            }
            sleep(pause).await;
        }
    }

    /// Stops renewing and takes the endpoint out, trying for at most 2 s. Once done, more calls do nothing.
    pub async fn leave(&self) -> Result<(), LinkError> {
        self.stop.cancel();
        let Some(task) = self.task.lock().await.take() else {
            return Ok(());
        };
        let end = Instant::now() + LEAVE_TIMEOUT;
        // A registration under way must not overtake its own end.
        let _ = timeout_at(end, task).await;
        let mut backoff = Backoff::default();
        loop {
            let left = end.saturating_duration_since(Instant::now()).max(Duration::from_millis(100));
            let error = match timeout(left, self.core.link.deregister(self.core.instance())).await {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(error)) if error.is_unknown() => return Ok(()),
                Ok(Err(error)) => error,
                Err(_) => {
                    let address = self.core.link.addresses().first().cloned();
                    return match address {
                        Some(address) => Err(LinkError::Timeout { address, after: LEAVE_TIMEOUT }),
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

impl Core {
    fn instance(&self) -> fairmesh_wire::v1::InstanceRef {
        instance_ref(&self.registration.service, &self.registration.instance)
    }
}

/// The task: one step tells the registry whatever it does not know yet, or else renews.
struct Keeper {
    core: Arc<Core>,
    wanted: watch::Receiver<EndpointState>,
    standing: watch::Sender<Standing>,
    /// What the registry was told last; `None` when it has to hear all again.
    told: Option<EndpointState>,
    backoff: Backoff,
}

impl Keeper {
    async fn run(mut self, stop: CancellationToken) {
        while !stop.is_cancelled() {
            let pause = self.step().await;
            tokio::select! {
                () = stop.cancelled() => {}
                () = sleep(pause) => {}
                // The sender is only gone when the lease is, and then the task is stopped as well.
                Ok(()) = self.wanted.changed() => {}
            }
        }
    }

    /// Does what is due and says how long there is nothing else to do.
    async fn step(&mut self) -> Duration {
        let wanted = *self.wanted.borrow_and_update();
        match self.tell(wanted).await {
            Ok(told) => {
                self.told = told;
                if told.is_none() {
                    return Duration::ZERO;
                }
                self.backoff = Backoff::default();
                self.stand(Standing::Registered(wanted));
                jittered(self.core.registration.lease / 3)
            }
            Err(error) => {
                if error.is_unknown() {
                    self.told = None;
                }
                self.stand(Standing::Failing(error.to_string()));
                self.backoff.next()
            }
        }
    }

    /// Brings the registry to `wanted`; returns what it holds then, `None` if it has forgotten the endpoint.
    async fn tell(&self, wanted: EndpointState) -> Result<Option<EndpointState>, LinkError> {
        let Core { link, registration } = &*self.core;
        let instance = self.core.instance();
        match self.told {
            // Whoever was lost may have been taken out since; announcing covers both.
            None | Some(EndpointState::Lost) if wanted != EndpointState::Lost || self.told.is_none() => {
                let location = match &registration.location {
                    Some(location) => location.clone(),
                    None => link.location().await?.ok_or(LinkError::NoRegion)?,
                };
                link.register(registration.message(location, wanted)).await?;
            }
            Some(told) if told == wanted => {
                if wanted != EndpointState::Lost && !link.renew(instance).await? {
                    return Ok(None);
                }
            }
            // The drain itself writes this state.
            _ if wanted == EndpointState::Draining => {}
            _ => {
                let state = fairmesh_wire::v1::endpoint::State::from(wanted).into();
                let report = fairmesh_wire::v1::StateReport { instance: Some(instance), state };
                link.report(report).await?;
            }
        }
        Ok(Some(wanted))
    }

    fn stand(&self, standing: Standing) {
        self.standing.send_if_modified(|now| {
            let changed = *now != standing;
            if changed {
                match &standing {
                    Standing::Failing(problem) => tracing::warn!(
                        service = %self.core.registration.service,
                        instance = %self.core.registration.instance,
                        problem,
                        "could not register or renew; trying again"
                    ),
                    other => tracing::info!(
                        service = %self.core.registration.service,
                        instance = %self.core.registration.instance,
                        standing = ?other,
                        "registration"
                    ),
                }
                *now = standing;
            }
            changed
        });
    }
}
