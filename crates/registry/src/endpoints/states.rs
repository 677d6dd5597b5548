use std::{collections::BTreeMap, time::Duration};

use fairmesh_model::{EndpointState, Prefix};
use fairmesh_rib::Op;
use tokio::time::Instant;

use super::{Claim, InstanceRef, StateReport, check_batch, expiry::MARKED_AT_ONCE};
use crate::{Registry, RegistryError, leases::Renewal, view::Held};

/// The longest wait for callers to move that one drain may ask for.
const LONGEST_DRAIN: Duration = Duration::from_secs(3600);

/// What a drain came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drained {
    /// The revision that says so.
    pub revision: u64,
    /// Whether every caller has applied it: none of them begins another call to these endpoints.
    pub callers_moved: bool,
    /// Those that have not, for people.
    pub behind: Vec<String>,
}

impl Registry {
    /// Renews leases, and answers those instances that have to register anew. Writes nothing, unless one that was lost
    /// is back.
    ///
    /// # Errors
    /// `Unavailable` when one that is back cannot be written; the others are renewed.
    pub async fn renew(&self, instances: &[Claim]) -> Result<Vec<InstanceRef>, RegistryError> {
        check_batch("instances", named(instances))?;
        let now = Instant::now();
        let (mut back, mut strange) = (Vec::new(), Vec::new());
        for who in instances {
            let renewal = self.leases().renew(who, now);
            match renewal {
                Renewal::Kept => {}
                Renewal::WasLost => back.push(who.instance.clone()),
                Renewal::Unknown => strange.push(who.clone()),
            }
        }
        let mut unknown = self.adopt(strange, now);
        if !back.is_empty() {
            unknown.extend(self.welcome_back(&back).await?);
        }
        Ok(unknown)
    }

    /// Takes up the leases of records that another writer made; answers those that have no record, or not this process's.
    fn adopt(&self, strange: Vec<Claim>, now: Instant) -> Vec<InstanceRef> {
        let found = self.find_claimed(&strange);
        let mut unknown = Vec::new();
        for (who, held) in strange.into_iter().zip(found) {
            match held.map(|held| (held.endpoint.lease, held.claim())) {
                None => unknown.push(who.instance),
                // Somebody else vouches for it.
                Some((None, _)) => {}
                Some((Some(term), registered)) => {
                    self.leases().grant(registered, term, now);
                    self.shared.lease_granted.notify_one();
                }
            }
        }
        unknown
    }

    /// Lost endpoints renewed: their records are mended, then their leases run again.
    async fn welcome_back(&self, back: &[InstanceRef]) -> Result<Vec<InstanceRef>, RegistryError> {
        let before: Vec<_> = back.iter().map(|who| (who.clone(), self.leases().state_before(who))).collect();
        self.mend(&before).await?;
        let now = Instant::now();
        let mut unknown = Vec::new();
        for (who, held) in back.iter().zip(self.find(back)) {
            match held.and_then(|held| Some((held.endpoint.lease?, held.claim()))) {
                Some((term, registered)) => {
                    self.leases().grant(registered, term, now);
                }
                None => {
                    self.leases().end(who);
                    unknown.push(who.clone());
                }
            }
        }
        self.shared.lease_granted.notify_one();
        Ok(unknown)
    }

    /// Gives those that are marked as lost the state back that they had.
    pub(super) async fn mend(&self, back: &[(InstanceRef, EndpointState)]) -> Result<(), RegistryError> {
        for back in back.chunks(MARKED_AT_ONCE) {
            let instances: Vec<_> = back.iter().map(|(who, _)| who.clone()).collect();
            let plan = || {
                let found = self.find(&instances).into_iter().zip(back);
                let found = found.filter_map(|(held, (_, before))| Some((held?, *before)));
                let lost = found.filter(|(held, _)| held.endpoint.state == EndpointState::Lost);
                Ok((lost.map(|(held, before)| with_state(&held, before)).collect(), ()))
            };
            self.change(plan).await?;
        }
        Ok(())
    }

    /// Sets states, all or none, and answers the revision.
    ///
    /// # Errors
    /// `NotFound` when one is not registered, or by another process.
    pub async fn report(&self, reports: &[StateReport]) -> Result<u64, RegistryError> {
        let claims: Vec<_> = reports.iter().map(|report| report.who.clone()).collect();
        check_batch("reports", named(&claims))?;
        let plan = || {
            let held = self.find_all("reports", &claims)?;
            let changed =
                held.iter().zip(reports).filter(|(held, report)| held.endpoint.state != report.state);
            Ok((changed.map(|(held, report)| with_state(held, report.state)).collect(), ()))
        };
        Ok(self.change(plan).await?.revision)
    }

    /// Marks endpoints as draining, then waits until every caller has applied that, at most for `patience` (ServiceRouter §3.2),
    /// which counts as an hour where it is longer. Dropped meanwhile, it leaves them draining.
    ///
    /// # Errors
    /// `NotFound` when one is not registered, or by another process; nothing is drained then.
    pub async fn drain(&self, instances: &[Claim], patience: Duration) -> Result<Drained, RegistryError> {
        let deadline = Instant::now() + patience.min(LONGEST_DRAIN);
        check_batch("instances", named(instances))?;
        let plan = || {
            let held = self.find_all("instances", instances)?;
            let running = held.iter().filter(|held| held.endpoint.state != EndpointState::Draining);
            Ok((running.map(|held| with_state(held, EndpointState::Draining)).collect(), ()))
        };
        self.change(plan).await?;
        // Watchers acknowledge what they were sent, so each folder is waited for with its own newest revision.
        let mut folders: BTreeMap<Prefix, u64> = BTreeMap::new();
        for held in self.find_claimed(instances).into_iter().flatten() {
            let newest = folders.entry(held.folder()).or_default();
            *newest = held.revision.max(*newest);
        }
        let revision = folders.values().copied().max().unwrap_or_else(|| self.node().revision().number);
        let mut behind = Vec::new();
        for (folder, revision) in folders {
            behind.extend(self.node().wait_acked(&folder, revision, deadline).await.behind);
        }
        behind.sort();
        behind.dedup();
        Ok(Drained { revision, callers_moved: behind.is_empty(), behind })
    }

    /// Takes endpoints out, with their leases, and answers the revision. Those that are not there, or are another process
    /// by now, are passed over.
    ///
    /// # Errors
    /// `Unavailable` when the store does not take the write.
    pub async fn deregister(&self, instances: &[Claim]) -> Result<u64, RegistryError> {
        check_batch("instances", named(instances))?;
        let plan = || {
            let found: Vec<_> = self.find_claimed(instances).into_iter().flatten().collect();
            Ok((found.iter().map(Held::delete).collect(), found.iter().map(Held::who).collect::<Vec<_>>()))
        };
        let changed = self.change(plan).await?;
        changed.told.iter().for_each(|who| self.forget(who));
        Ok(changed.revision)
    }
}

fn named(claims: &[Claim]) -> impl ExactSizeIterator<Item = InstanceRef> + '_ {
    claims.iter().map(|claim| claim.instance.clone())
}

pub(super) fn with_state(held: &Held, state: EndpointState) -> Op {
    let mut endpoint = held.endpoint.clone();
    endpoint.state = state;
    held.put(&endpoint)
}
