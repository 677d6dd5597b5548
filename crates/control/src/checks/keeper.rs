use std::{collections::BTreeSet, sync::Arc, time::Duration};

use fairmesh_model::{Endpoint, Hosts, Prefix, Record, RecordKey, ServiceName, Verdict, Verdicts};
use fairmesh_rib::{Expect, Op};
use fairmesh_wire::records;
use tokio::time::Instant;

use super::{Checks, write};

/// How long a region may be without a checker before its verdicts lose their force.
const VACANT: Duration = Duration::from_secs(60);
/// How often vacant regions are looked for.
const LOOK: Duration = Duration::from_secs(5);
/// How many records one batch changes.
const AT_ONCE: usize = 1000;

/// How the services that are checked fare.
pub(crate) struct Survey {
    /// Regions with endpoints to check and nobody who does.
    pub(crate) unchecked_regions: usize,
    /// Services times regions whose verdicts callers ignore.
    pub(crate) panics: usize,
}

impl Checks {
    /// Takes out verdicts on endpoints that are gone or no longer checked, and marks those that nobody renews, for ever.
    pub(crate) async fn keep(&self) {
        let mut look = tokio::time::interval(LOOK);
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let gone = tokio::select! {
                () = self.roll.untidy.notified() => true,
                _ = look.tick() => false,
            };
            for (region, keys) in self.roll.verdicts() {
                let vacant = self.seats.vacant_for(&region, Instant::now()) > VACANT;
                if !gone && !vacant {
                    continue;
                }
                let keys: Vec<RecordKey> = keys.into_iter().collect();
                for keys in keys.chunks(AT_ONCE) {
                    let plan = || keys.iter().filter_map(|key| self.tended(key, vacant)).collect();
                    if let Err(error) = self.write(plan).await {
                        tracing::warn!(%region, %error, "verdicts cannot be kept up; trying again");
                    }
                }
            }
        }
    }

    /// What has to be done about one verdict, if anything.
    fn tended(&self, key: &RecordKey, vacant: bool) -> Option<Op> {
        let RecordKey::Health(service, region, instance) = key else { return None };
        let held = self.held(key)?;
        let endpoint = RecordKey::Endpoint(service.clone(), region.clone(), instance.clone());
        let checked = self.roll.services().borrow().contains(service);
        if !checked || self.node.get(&endpoint.to_string()).is_none() {
            return Some(Op::delete(key.to_string()).expecting(Expect::Revision(held.revision)));
        }
        // A healthy one has no force to lose.
        let loses = vacant && !held.verdict.healthy && !held.verdict.stale;
        loses.then(|| write::put(key, Some(&held), Verdict { stale: true, ..held.verdict.clone() }))
    }

    /// How many regions have a checker.
    pub(crate) fn checkers(&self) -> usize {
        self.seats.held()
    }

    /// Looks through every service that is checked.
    pub(crate) fn survey(&self) -> Survey {
        let services = Arc::clone(&self.roll.services().borrow());
        let hosts = match self.node.get(&RecordKey::Hosts.to_string()).map(|entry| entry.value) {
            Some(value) => match records::decode(&RecordKey::Hosts, &value) {
                Ok(Record::Hosts(hosts)) => hosts,
                _ => Hosts::default(),
            },
            None => Hosts::default(),
        };
        let (mut regions, mut panics) = (BTreeSet::new(), 0);
        for service in services.iter() {
            let (endpoints, verdicts) = self.of_service(service);
            let endpoints: Vec<&Endpoint> = endpoints.iter().collect();
            panics += verdicts.judge(&endpoints, &hosts).panics.len();
            regions.extend(endpoints.iter().map(|endpoint| endpoint.location.region.clone()));
        }
        let now = Instant::now();
        let unchecked = regions.iter().filter(|region| !self.seats.vacant_for(region, now).is_zero());
        Survey { unchecked_regions: unchecked.count(), panics }
    }

    fn of_service(&self, service: &ServiceName) -> (Vec<Endpoint>, Verdicts) {
        let (mut endpoints, mut verdicts) = (Vec::new(), Verdicts::default());
        let (_, entries) = self.node.read(&[Prefix::endpoints(service, None), Prefix::health(service, None)]);
        for (key, entry) in entries {
            let Ok(key) = RecordKey::parse(&key) else { continue };
            match (records::decode(&key, &entry.value), key) {
                (Ok(Record::Endpoint(endpoint)), _) => endpoints.push(endpoint),
                (Ok(Record::Verdict(verdict)), RecordKey::Health(_, region, instance)) => {
                    verdicts.put(region, instance, verdict);
                }
                _ => {}
            }
        }
        (endpoints, verdicts)
    }
}
