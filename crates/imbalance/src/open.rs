use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    sync::Arc,
};

use fairmesh_model::{HostType, InstanceId, Location, ServiceName};

use crate::{Member, Minute, Row, Unusable, Usage};

/// How late a usage may come, in minutes after the one that it is about; what is later is dropped.
pub const LATENESS: u32 = 15;
/// How long minutes wait to be written where they cannot be, before they are given up.
pub const KEPT: u32 = 60;
/// How many instances are taken in one minute.
pub const MAX_INSTANCES: usize = 100_000;

/// How far a sender's clock may be ahead, in minutes.
const AHEAD: u32 = 1;

/// What became of a usage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// It counts now.
    Counted,
    /// As much of that minute, or more, was known: nothing changes.
    Known,
    /// Its minute is closed.
    Late,
    /// Its minute has not begun.
    Future,
    /// It cannot be true.
    Unusable(Unusable),
    /// The minute holds as many instances as it may.
    Full,
}

/// The minutes that may still change: whoever is late within bounds is counted in its own minute.
///
/// One usage an instance and minute, that with the longest time covered: sending one again, or all of them after a
/// restart, counts nothing twice.
#[derive(Debug, Default)]
pub struct Open {
    minutes: BTreeMap<Minute, Services>,
    /// Everything up to here is closed.
    closed: Option<Minute>,
    changed: BTreeSet<(Minute, ServiceName)>,
    places: HashSet<Arc<Location>>,
}

/// What is known of one minute.
#[derive(Debug, Default)]
struct Services {
    instances: usize,
    by_name: BTreeMap<ServiceName, BTreeMap<InstanceId, (Arc<Location>, Usage)>>,
}

impl Open {
    /// Takes what an instance of `service`, at `place`, used in `minute`.
    pub fn take(
        &mut self,
        (service, instance, place): (&ServiceName, &InstanceId, &Location),
        (minute, usage): (Minute, Usage),
        now: Minute,
    ) -> Taken {
        if let Err(reason) = usage.check() {
            return Taken::Unusable(reason);
        }
        if minute.0 > now.0.saturating_add(AHEAD) {
            return Taken::Future;
        }
        if minute < now.before(LATENESS) || self.closed.is_some_and(|closed| minute <= closed) {
            return Taken::Late;
        }
        let taken = self.keep((service, instance, place), (minute, usage));
        if taken == Taken::Counted {
            self.changed.insert((minute, service.clone()));
        }
        taken
    }

    /// Takes what was written down before a restart, whatever the time. Nothing is new about it.
    pub fn restore(&mut self, who: (&ServiceName, &InstanceId, &Location), (minute, usage): (Minute, Usage)) {
        self.keep(who, (minute, usage));
    }

    /// Takes nothing any more for `minute` and those before it.
    pub fn closed_through(&mut self, minute: Minute) {
        self.closed = self.closed.max(Some(minute));
    }

    fn keep(
        &mut self,
        (service, instance, place): (&ServiceName, &InstanceId, &Location),
        (minute, usage): (Minute, Usage),
    ) -> Taken {
        let place = self.place(place);
        let of_minute = self.minutes.entry(minute).or_default();
        let known = of_minute.by_name.get(service).and_then(|instances| instances.get(instance));
        match known {
            Some((_, known)) if known.covered_ms >= usage.covered_ms => return Taken::Known,
            Some(_) => {}
            None if of_minute.instances >= MAX_INSTANCES => return Taken::Full,
            None => of_minute.instances += 1,
        }
        let instances = of_minute.by_name.entry(service.clone()).or_default();
        instances.insert(instance.clone(), (place, usage));
        Taken::Counted
    }

    /// One shared copy of each place: there are few of them.
    fn place(&mut self, place: &Location) -> Arc<Location> {
        if let Some(known) = self.places.get(place) {
            return known.clone();
        }
        let place = Arc::new(place.clone());
        self.places.insert(place.clone());
        place
    }

    /// Whether anything is known of this instance in a minute that may still change.
    pub fn knows(&self, service: &ServiceName, instance: &InstanceId) -> bool {
        let services = self.minutes.values().filter_map(|minute| minute.by_name.get(service));
        services.into_iter().any(|instances| instances.contains_key(instance))
    }

    /// The minutes that hold anything.
    pub fn minutes(&self) -> Vec<Minute> {
        self.minutes.keys().copied().collect()
    }

    /// The services of a minute, as rows.
    pub fn rows(&self, minute: Minute) -> Vec<(ServiceName, Row)> {
        let services = self.minutes.get(&minute).into_iter().flat_map(|minute| &minute.by_name);
        let rows = services.map(|(service, instances)| {
            let containers = instances.values().filter(|(_, usage)| usage.counts());
            (service.clone(), Row::of_minute(containers.map(|(place, usage)| (&**place, usage.millicores()))))
        });
        rows.filter(|(_, row)| row.minutes > 0).collect()
    }

    /// All that is known of a service in a minute.
    pub fn usages(&self, minute: Minute, service: &ServiceName) -> Vec<(InstanceId, Arc<Location>, Usage)> {
        let instances = self.minutes.get(&minute).and_then(|minute| minute.by_name.get(service));
        let usages = instances.into_iter().flatten();
        usages.map(|(instance, (place, usage))| (instance.clone(), place.clone(), *usage)).collect()
    }

    /// What has changed since this was asked last, to be written down.
    pub fn take_changed(&mut self) -> BTreeSet<(Minute, ServiceName)> {
        std::mem::take(&mut self.changed)
    }

    /// It could not be written down; it is asked for again.
    pub fn still_changed(&mut self, minute: Minute, service: ServiceName) {
        if self.minutes.contains_key(&minute) {
            self.changed.insert((minute, service));
        }
    }

    /// The minutes whose time is up: nothing is taken for them any more.
    pub fn due(&self, now: Minute) -> Vec<Minute> {
        self.minutes.range(..now.before(LATENESS)).map(|(minute, _)| *minute).collect()
    }

    /// Gives up a minute and all before it, which are kept elsewhere from now on, or nowhere.
    pub fn close(&mut self, minute: Minute) {
        self.minutes = self.minutes.split_off(&Minute(minute.0.saturating_add(1)));
        self.changed.retain(|(changed, _)| *changed > minute);
        self.closed_through(minute);
        self.places.retain(|place| Arc::strong_count(place) > 1);
    }

    /// What the instances of each service on each named type of hardware did over all minutes here.
    pub fn members(&self) -> BTreeMap<(ServiceName, HostType), Vec<Member>> {
        let mut sums: BTreeMap<(ServiceName, HostType), BTreeMap<InstanceId, Member>> = BTreeMap::new();
        let services = self.minutes.values().flat_map(|minute| &minute.by_name);
        let all = services.flat_map(|(service, all)| all.iter().map(move |(who, said)| (service, who, said)));
        for (service, instance, (place, usage)) in all {
            let Some(host_type) = &place.host_type else { continue };
            let members = sums.entry((service.clone(), host_type.clone())).or_default();
            let member = members.entry(instance.clone()).or_insert_with(|| Member {
                instance: instance.clone(),
                cpu_us: 0,
                covered_ms: 0,
                requests: 0,
            });
            member.cpu_us += usage.cpu_us;
            member.covered_ms += u64::from(usage.covered_ms);
            member.requests += usage.requests;
        }
        sums.into_iter().map(|(key, members)| (key, members.into_values().collect())).collect()
    }
}

#[cfg(test)]
mod tests;
