use std::{collections::BTreeMap, time::Duration};

use fairmesh_model::{Endpoint, EndpointState, Prefix};
use fairmesh_rib::Op;
use tokio::time::Instant;

use super::{InstanceClaim, InstanceRef, StateReport, check_batch, expiry::EXPIRY_BATCH};
use fairmesh_rib::wall_clock::now_ms;

use crate::{Registry, RegistryError, leases::Renewal, stored_records::StoredEndpoint};

/// Longest time that a drain may wait for callers.
const MAX_DRAIN_TIMEOUT: Duration = Duration::from_secs(3600);

/// Maximum size of an author's name in a label, in bytes.
const MAX_AUTHOR: usize = 200;

/// The result of a drain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DrainOutcome {
    /// The revision of the drain.
    pub revision: u64,
    /// Whether every caller has applied the drain. If so, no caller starts another call to these endpoints.
    pub callers_moved: bool,
    /// Watchers that have not applied the drain, for operators.
    pub behind: Vec<String>,
}

impl Registry {
    /// Renews leases and returns the instances that must register again. Writes records only if a lost endpoint
    /// renews.
    ///
    /// # Errors
    /// `Unavailable` when the record of a returning endpoint cannot be written; all other leases are renewed.
    pub async fn renew(&self, instances: &[InstanceClaim]) -> Result<Vec<InstanceRef>, RegistryError> {
        check_batch("instances", named(instances))?;
        let now = Instant::now();
        let (mut back, mut unleased) = (Vec::new(), Vec::new());
        for instance in instances {
            let renewal = self.leases().renew(instance, now);
            match renewal {
                Renewal::Renewed => {}
                Renewal::WasLost => back.push(instance.instance.clone()),
                Renewal::Unknown => unleased.push(instance.clone()),
            }
        }
        let mut unknown = self.adopt(unleased, now);
        if !back.is_empty() {
            unknown.extend(self.restore_lost(&back).await?);
        }
        Ok(unknown)
    }

    /// Grants leases to instances whose records other processes wrote. Returns the instances without a record, and
    /// those whose record belongs to another process.
    fn adopt(&self, unleased: Vec<InstanceClaim>, now: Instant) -> Vec<InstanceRef> {
        let found = self.find_claimed(&unleased);
        let mut unknown = Vec::new();
        for (instance, held) in unleased.into_iter().zip(found) {
            match held.map(|held| (held.endpoint.lease, held.claim())) {
                None => unknown.push(instance.instance),
                // The record has no lease: whoever wrote the record keeps it registered.
                Some((None, _)) => {}
                Some((Some(term), registered)) => {
                    self.leases().grant(registered, term, now);
                    self.shared.lease_granted.notify_one();
                }
            }
        }
        unknown
    }

    /// Restores the records of lost endpoints that renewed, then grants their leases.
    async fn restore_lost(&self, back: &[InstanceRef]) -> Result<Vec<InstanceRef>, RegistryError> {
        let before: Vec<_> =
            back.iter().map(|instance| (instance.clone(), self.leases().state_before(instance))).collect();
        self.restore_states(&before).await?;
        let now = Instant::now();
        let mut unknown = Vec::new();
        for (instance, held) in back.iter().zip(self.find(back)) {
            match held.and_then(|held| Some((held.endpoint.lease?, held.claim()))) {
                Some((term, registered)) => {
                    self.leases().grant(registered, term, now);
                }
                None => {
                    self.leases().end(instance);
                    unknown.push(instance.clone());
                }
            }
        }
        self.shared.lease_granted.notify_one();
        Ok(unknown)
    }

    /// Restores the previous states of endpoints that are marked as lost.
    pub(super) async fn restore_states(
        &self,
        back: &[(InstanceRef, EndpointState)],
    ) -> Result<(), RegistryError> {
        for back in back.chunks(EXPIRY_BATCH) {
            let instances: Vec<_> = back.iter().map(|(instance, _)| instance.clone()).collect();
            let plan = || {
                let found = self.find(&instances).into_iter().zip(back);
                let found = found.filter_map(|(held, (_, before))| Some((held?, *before)));
                let lost = found.filter(|(held, _)| held.endpoint.state == EndpointState::Lost);
                Ok((lost.map(|(held, before)| with_state(&held, before, Endpoint::EXPIRED)).collect(), ()))
            };
            self.change(plan).await?;
        }
        Ok(())
    }

    /// Sets states, all or none, and returns the revision. An operator's drain prevails, even over reports of
    /// programs without incarnations.
    ///
    /// # Errors
    /// `NotFound` when an instance is not registered, or is registered by another process. `Refused` when another
    /// process reports an endpoint whose lease expired: callers would use it, and nothing would mark it as lost
    /// again.
    pub async fn report(&self, reports: &[StateReport]) -> Result<u64, RegistryError> {
        self.report_as(reports, false).await
    }

    /// Sets states on behalf of an operator, which also ends an operator's drain.
    ///
    /// # Errors
    /// As for [`Self::report`].
    pub async fn report_by_operator(&self, reports: &[StateReport]) -> Result<u64, RegistryError> {
        self.report_as(reports, true).await
    }

    async fn report_as(&self, reports: &[StateReport], is_operator: bool) -> Result<u64, RegistryError> {
        let claims: Vec<_> = reports.iter().map(|report| report.claim.clone()).collect();
        check_batch("reports", named(&claims))?;
        let plan = || {
            let mut ops = Vec::new();
            for (held, StateReport { claim, state }) in self.find_all("reports", &claims)?.iter().zip(reports)
            {
                let is_other = is_operator || claim.incarnation == 0;
                if is_other && *state != EndpointState::Lost && self.leases().is_lost(&claim.instance) {
                    return Err(lost("reports", held));
                }
                let mut endpoint = held.endpoint.clone();
                if is_operator && matches!(state, EndpointState::Serving | EndpointState::Starting) {
                    endpoint.labels.remove(Endpoint::DRAINED);
                }
                set_state(&mut endpoint, *state, Endpoint::REPORTED);
                ops.extend((endpoint != held.endpoint).then(|| held.put(&endpoint)));
            }
            Ok((ops, ()))
        };
        Ok(self.change(plan).await?.revision)
    }

    /// Drains like [`Self::drain`] on behalf of an operator. The drain lasts until an operator ends it or the
    /// endpoint is removed, even if the lease expires or another process registers under the same name.
    ///
    /// # Errors
    /// As for [`Self::drain`], and `Refused` for a lost endpoint.
    pub async fn drain_by_operator(
        &self,
        instances: &[InstanceClaim],
        author: &str,
        timeout: Duration,
    ) -> Result<DrainOutcome, RegistryError> {
        self.drain_as(instances, Some(author), timeout).await
    }

    /// Marks endpoints as draining, then waits up to `timeout`, an hour at most, until every caller has applied the
    /// drain (ServiceRouter §3.2). If the wait is cancelled, the endpoints stay draining.
    ///
    /// # Errors
    /// `NotFound` when an instance is not registered, or is registered by another process; then nothing is drained.
    pub async fn drain(
        &self,
        instances: &[InstanceClaim],
        timeout: Duration,
    ) -> Result<DrainOutcome, RegistryError> {
        self.drain_as(instances, None, timeout).await
    }

    async fn drain_as(
        &self,
        instances: &[InstanceClaim],
        operator: Option<&str>,
        timeout: Duration,
    ) -> Result<DrainOutcome, RegistryError> {
        let deadline = Instant::now() + timeout.min(MAX_DRAIN_TIMEOUT);
        check_batch("instances", named(instances))?;
        let label = operator.map(|author| format!("{} {}", now_ms(), short(author)));
        let plan = || {
            let mut ops = Vec::new();
            for held in self.find_all("instances", instances)? {
                let mut endpoint = held.endpoint.clone();
                if let Some(label) = &label {
                    if endpoint.state == EndpointState::Lost {
                        return Err(lost("instances", &held));
                    }
                    // Keeps the label of the first drain.
                    endpoint.labels.entry(Endpoint::DRAINED.into()).or_insert_with(|| label.clone());
                }
                set_state(&mut endpoint, EndpointState::Draining, "");
                ops.extend((endpoint != held.endpoint).then(|| held.put(&endpoint)));
            }
            Ok((ops, ()))
        };
        self.change(plan).await?;
        // Watchers acknowledge only changes sent to them, so the wait for each prefix is for its own newest revision.
        let mut folders: BTreeMap<Prefix, u64> = BTreeMap::new();
        for held in self.find_claimed(instances).into_iter().flatten() {
            let newest = folders.entry(held.region_prefix()).or_default();
            *newest = held.revision.max(*newest);
        }
        let revision = folders.values().copied().max().unwrap_or_else(|| self.node().revision().number);
        let mut behind = Vec::new();
        for (folder, revision) in folders {
            let acked = self.node().wait_acked(&folder, revision, deadline).await;
            behind.extend(acked.behind.iter().map(ToString::to_string));
        }
        behind.sort();
        behind.dedup();
        Ok(DrainOutcome { revision, callers_moved: behind.is_empty(), behind })
    }

    /// Removes endpoints with their leases and returns the revision. Skips instances that are not registered, or are
    /// registered by another process.
    ///
    /// # Errors
    /// `Unavailable` when the store does not accept the write.
    pub async fn deregister(&self, instances: &[InstanceClaim]) -> Result<u64, RegistryError> {
        check_batch("instances", named(instances))?;
        let plan = || {
            let found: Vec<_> = self.find_claimed(instances).into_iter().flatten().collect();
            Ok((
                found.iter().map(StoredEndpoint::delete).collect(),
                found.iter().map(StoredEndpoint::instance_ref).collect::<Vec<_>>(),
            ))
        };
        let changed = self.change(plan).await?;
        changed.output.iter().for_each(|instance| self.forget(instance));
        Ok(changed.revision)
    }

    /// Removes lost endpoints, all or none. An endpoint that returned meanwhile stays.
    ///
    /// # Errors
    /// `NotFound` when an instance is not registered, `Refused` when it is not lost.
    pub async fn deregister_lost(&self, instances: &[InstanceClaim]) -> Result<u64, RegistryError> {
        check_batch("instances", named(instances))?;
        let plan = || {
            let found = self.find_all("instances", instances)?;
            if let Some(held) = found.iter().find(|held| held.endpoint.state != EndpointState::Lost) {
                return Err(not_lost(held));
            }
            Ok((
                found.iter().map(StoredEndpoint::delete).collect(),
                found.iter().map(StoredEndpoint::instance_ref).collect::<Vec<_>>(),
            ))
        };
        let changed = self.change(plan).await?;
        changed.output.iter().for_each(|instance| self.forget(instance));
        Ok(changed.revision)
    }
}

fn named(claims: &[InstanceClaim]) -> impl ExactSizeIterator<Item = InstanceRef> + '_ {
    claims.iter().map(|claim| claim.instance.clone())
}

/// Returns the write that sets a state. `cause` explains the state [`EndpointState::Lost`].
pub(super) fn with_state(held: &StoredEndpoint, state: EndpointState, cause: &str) -> Op {
    let mut endpoint = held.endpoint.clone();
    set_state(&mut endpoint, state, cause);
    held.put(&endpoint)
}

/// Sets the state. During an operator's drain, serving becomes draining.
pub(super) fn set_state(endpoint: &mut Endpoint, state: EndpointState, cause: &str) {
    let is_drained = endpoint.labels.contains_key(Endpoint::DRAINED);
    let before = endpoint.state;
    endpoint.state = match state {
        EndpointState::Serving if is_drained => EndpointState::Draining,
        state => state,
    };
    match (before, endpoint.state) {
        (EndpointState::Lost, EndpointState::Lost) => {}
        (_, EndpointState::Lost) => {
            drop(endpoint.labels.insert(Endpoint::LOST.into(), format!("{} {cause}", now_ms())));
        }
        _ => drop(endpoint.labels.remove(Endpoint::LOST)),
    }
}

fn lost(field: &str, held: &StoredEndpoint) -> RegistryError {
    let InstanceRef { service, instance } = held.instance_ref();
    let problem = format!(
        "'{instance}' of {service} is lost: its lease was not renewed, or its program does not respond"
    );
    let hint = format!(
        "start its server again, which brings it back, or remove it with 'fairmesh delete endpoint {service} {instance}'"
    );
    RegistryError::refused(field, problem, &hint)
}

fn not_lost(held: &StoredEndpoint) -> RegistryError {
    let InstanceRef { service, instance } = held.instance_ref();
    let state = held.endpoint.state.as_str();
    let problem = format!("'{instance}' of {service} is {state}: its server would register it again");
    let hint =
        "stop its server, or take it out of service with 'fairmesh drain'; --force removes it all the same";
    RegistryError::refused("instances", problem, hint)
}

/// Returns the longest prefix of an author's name that fits a label.
fn short(author: &str) -> &str {
    &author[..author.floor_char_boundary(MAX_AUTHOR)]
}
