use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    sync::Arc,
};

use fairmesh_model::{HostType, InstanceId, Location, ServiceName};

use crate::{ImplausibleUsage, Member, Minute, Row, Usage};

/// Maximum lateness of a usage report, in minutes. Later reports are dropped.
pub const MAX_LATENESS: u32 = 15;
/// Maximum time for which data of a closed minute waits to be written, in minutes. Afterwards it is dropped.
pub const MAX_WRITE_DELAY: u32 = 60;
/// Maximum number of instances with usage in one minute.
pub const MAX_INSTANCES: usize = 100_000;

/// Maximum time by which a sender's clock may be ahead, in minutes.
const MAX_CLOCK_AHEAD: u32 = 1;

/// The result of adding a usage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddOutcome {
    /// The usage is counted.
    Counted,
    /// The minute already has a usage of the instance that covers at least as much time. Nothing changes.
    Known,
    /// The minute is closed.
    Late,
    /// The minute has not begun.
    Future,
    /// The usage is implausible.
    Unusable(ImplausibleUsage),
    /// The minute has the maximum number of instances.
    Full,
}

/// The instance whose usage was measured.
#[derive(Clone, Copy, Debug)]
pub struct MeasuredInstance<'a> {
    /// The instance's service.
    pub service: &'a ServiceName,
    /// The instance's name.
    pub instance: &'a InstanceId,
    /// The instance's location.
    pub location: &'a Location,
}

/// The minutes that may still change. Usage that arrives late, within bounds, is counted in its own minute.
///
/// Each instance has one usage per minute: the one that covers the longest time. Reports that are repeated, for
/// example after a restart, are therefore not counted twice.
#[derive(Debug, Default)]
pub struct OpenMinutes {
    minutes: BTreeMap<Minute, Services>,
    /// Minutes up to this one are closed.
    closed: Option<Minute>,
    changed: BTreeSet<(Minute, ServiceName)>,
    locations: HashSet<Arc<Location>>,
}

/// The usages of one minute.
#[derive(Debug, Default)]
struct Services {
    instances: usize,
    by_name: BTreeMap<ServiceName, BTreeMap<InstanceId, (Arc<Location>, Usage)>>,
}

impl OpenMinutes {
    /// Adds the usage of an instance in `minute`.
    pub fn add(
        &mut self,
        instance: MeasuredInstance<'_>,
        (minute, usage): (Minute, Usage),
        now: Minute,
    ) -> AddOutcome {
        if let Err(reason) = usage.check() {
            return AddOutcome::Unusable(reason);
        }
        if minute.0 > now.0.saturating_add(MAX_CLOCK_AHEAD) {
            return AddOutcome::Future;
        }
        if minute < now.before(MAX_LATENESS) || self.closed.is_some_and(|closed| minute <= closed) {
            return AddOutcome::Late;
        }
        let taken = self.keep(instance, (minute, usage));
        if taken == AddOutcome::Counted {
            self.changed.insert((minute, instance.service.clone()));
        }
        taken
    }

    /// Restores data stored before a restart, regardless of the time. Restored data does not count as changed.
    pub fn restore(&mut self, instance: MeasuredInstance<'_>, (minute, usage): (Minute, Usage)) {
        self.keep(instance, (minute, usage));
    }

    /// Closes `minute` and all earlier minutes.
    pub fn close_through(&mut self, minute: Minute) {
        self.closed = self.closed.max(Some(minute));
    }

    fn keep(&mut self, measured: MeasuredInstance<'_>, (minute, usage): (Minute, Usage)) -> AddOutcome {
        let MeasuredInstance { service, instance, location } = measured;
        let place = self.place(location);
        let of_minute = self.minutes.entry(minute).or_default();
        let known = of_minute.by_name.get(service).and_then(|instances| instances.get(instance));
        match known {
            Some((_, known)) if known.covered_ms >= usage.covered_ms => return AddOutcome::Known,
            Some(_) => {}
            None if of_minute.instances >= MAX_INSTANCES => return AddOutcome::Full,
            None => of_minute.instances += 1,
        }
        let instances = of_minute.by_name.entry(service.clone()).or_default();
        instances.insert(instance.clone(), (place, usage));
        AddOutcome::Counted
    }

    /// Returns the shared copy of a location. There are few different locations.
    fn place(&mut self, place: &Location) -> Arc<Location> {
        if let Some(known) = self.locations.get(place) {
            return known.clone();
        }
        let place = Arc::new(place.clone());
        self.locations.insert(place.clone());
        place
    }

    /// Whether this instance has usage in a minute that may still change.
    pub fn contains(&self, service: &ServiceName, instance: &InstanceId) -> bool {
        let services = self.minutes.values().filter_map(|minute| minute.by_name.get(service));
        services.into_iter().any(|instances| instances.contains_key(instance))
    }

    /// The minutes that have any usage.
    pub fn minutes(&self) -> Vec<Minute> {
        self.minutes.keys().copied().collect()
    }

    /// The row of each service in a minute.
    pub fn rows(&self, minute: Minute) -> Vec<(ServiceName, Row)> {
        let services = self.minutes.get(&minute).into_iter().flat_map(|minute| &minute.by_name);
        let rows = services.map(|(service, instances)| {
            let containers = instances.values().filter(|(_, usage)| usage.counts());
            (service.clone(), Row::of_minute(containers.map(|(place, usage)| (&**place, usage.millicores()))))
        });
        rows.filter(|(_, row)| row.minutes > 0).collect()
    }

    /// All usages of a service in a minute.
    pub fn usages(&self, minute: Minute, service: &ServiceName) -> Vec<(InstanceId, Arc<Location>, Usage)> {
        let instances = self.minutes.get(&minute).and_then(|minute| minute.by_name.get(service));
        let usages = instances.into_iter().flatten();
        usages.map(|(instance, (place, usage))| (instance.clone(), place.clone(), *usage)).collect()
    }

    /// Changes since the last call, to be stored.
    pub fn take_changed(&mut self) -> BTreeSet<(Minute, ServiceName)> {
        std::mem::take(&mut self.changed)
    }

    /// Marks a change as changed again because it could not be stored.
    pub fn still_changed(&mut self, minute: Minute, service: ServiceName) {
        if self.minutes.contains_key(&minute) {
            self.changed.insert((minute, service));
        }
    }

    /// The minutes that are due to be closed.
    pub fn due(&self, now: Minute) -> Vec<Minute> {
        self.minutes.range(..now.before(MAX_LATENESS)).map(|(minute, _)| *minute).collect()
    }

    /// Removes a minute and all earlier ones, after they were stored elsewhere or dropped.
    pub fn close(&mut self, minute: Minute) {
        self.minutes = self.minutes.split_off(&Minute(minute.0.saturating_add(1)));
        self.changed.retain(|(changed, _)| *changed > minute);
        self.close_through(minute);
        self.locations.retain(|place| Arc::strong_count(place) > 1);
    }

    /// The usage of each instance of a service, summed over all open minutes.
    pub fn instances(&self, service: &ServiceName) -> Vec<Member> {
        let mut sums: BTreeMap<InstanceId, Member> = BTreeMap::new();
        let minutes = self.minutes.values().filter_map(|minute| minute.by_name.get(service));
        for (instance, (_, usage)) in minutes.flatten() {
            let new = || Member { instance: instance.clone(), cpu_us: 0, covered_ms: 0, requests: 0 };
            sums.entry(instance.clone()).or_insert_with(new).add(usage);
        }
        sums.into_values().collect()
    }

    /// The usage of each instance, summed over all open minutes and grouped by service and hardware type.
    pub fn members(&self) -> BTreeMap<(ServiceName, HostType), Vec<Member>> {
        let mut sums: BTreeMap<(ServiceName, HostType), BTreeMap<InstanceId, Member>> = BTreeMap::new();
        let services = self.minutes.values().flat_map(|minute| &minute.by_name);
        let all = services
            .flat_map(|(service, all)| all.iter().map(move |(instance, usage)| (service, instance, usage)));
        for (service, instance, (place, usage)) in all {
            let Some(host_type) = &place.host_type else { continue };
            let members = sums.entry((service.clone(), host_type.clone())).or_default();
            let member = members.entry(instance.clone()).or_insert_with(|| Member {
                instance: instance.clone(),
                cpu_us: 0,
                covered_ms: 0,
                requests: 0,
            });
            member.add(usage);
        }
        sums.into_iter().map(|(key, members)| (key, members.into_values().collect())).collect()
    }
}

#[cfg(test)]
mod tests;
