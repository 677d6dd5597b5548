//! Scatters services that peak together: moves one of them to backends whose peaks are at other times (Canal Mesh, sections
//! 4.2 and 6.3).

use std::{cmp::Reverse, collections::BTreeMap};

use fairmesh_model::{Label, ServiceName};

use crate::{
    backend_set::BackendSet,
    fleet::Fleet,
    input::{Backend, PlacedService},
    occupied_backends::Occupied,
};

/// Number of evenly spaced samples, in the hours in which the service is busy, by which the loads of other backends are
/// compared.
const SAMPLES: usize = 10;
/// Number of backends with the least load in these hours that are compared over the whole day.
const QUIETEST: usize = 5;
/// The peak of the backend that takes over must stay below this part of the peak of the backend that is relieved: a move
/// costs connections.
const LOWER: f64 = 0.9;

/// A move of one of several services that peak together on a backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scattered {
    /// The service to move.
    pub service: ServiceName,
    /// The backend that it leaves, on which others peak together with it.
    pub from: Label,
    /// The backend of the same zone that takes over.
    pub to: Label,
}

/// Input of [`scatter`].
#[derive(Clone, Copy, Debug)]
pub struct DayLoads<'a> {
    /// All backends.
    pub backends: &'a [Backend],
    /// All services.
    pub services: &'a [PlacedService],
    /// The load of services over a day, in slots of equal length, over all of their backends together. All have the same number of slots.
    pub loads: &'a BTreeMap<ServiceName, Vec<f64>>,
}

/// The next service to move, so that services that peak at the same time do so on different backends; `None` if no move lowers a peak.
/// A backend that does not report takes nothing over.
///
/// The backend with the highest peak comes first, and of the services that are busy then, the one with the most load: it is moved for the
/// fewest moves. It is busy while its load is half of its own peak or more. Ten samples of these hours rank the other backends of the zone;
/// of the five with the least load, the one with the least over the day takes over, as in the paper. Beyond the paper, its peak must stay below the
/// one that is lowered, and combinations stay apart. Services with few sessions that last are not preferred, as in the paper: open connections
/// stay where they are, and no replica reports how long they do.
pub fn scatter(input: DayLoads<'_>) -> Option<Scattered> {
    let mut day = Day::new(input);
    let mut backends: Vec<usize> = (0..day.fleet.backends.len()).collect();
    backends.sort_by(|a, b| peak(&day.loads[*b]).1.total_cmp(&peak(&day.loads[*a]).1));
    backends.into_iter().find_map(|backend| day.relieve(backend))
}

/// The loads of backends over a day.
struct Day<'a> {
    fleet: Fleet<'a>,
    services: &'a [PlacedService],
    sets: Vec<BackendSet>,
    occupied: Occupied,
    /// The share of each service at each of its backends in the home zone.
    shares: Vec<Vec<f64>>,
    loads: Vec<Vec<f64>>,
}

impl<'a> Day<'a> {
    fn new(DayLoads { backends, services, loads: known }: DayLoads<'a>) -> Self {
        let fleet = Fleet::new(backends);
        let slots = known.values().map(Vec::len).max().unwrap_or(0);
        let sets: Vec<BackendSet> = services.iter().map(|one| fleet.set_of(&one.present)).collect();
        let mut occupied = Occupied::new(fleet.backends.len());
        let (mut shares, mut loads) = (Vec::new(), vec![vec![0.0; slots]; fleet.backends.len()]);
        for (number, (service, set)) in services.iter().zip(&sets).enumerate() {
            if !set.is_empty() {
                occupied.insert(number, set.clone());
            }
            let at_home: Vec<usize> = set.iter().filter(|one| fleet.is_in(*one, &service.home)).collect();
            let all = known.get(&service.name).cloned().unwrap_or_default();
            let share: Vec<f64> = all.iter().map(|load| load / at_home.len().max(1) as f64).collect();
            for backend in at_home {
                add(&mut loads[backend], &share);
            }
            shares.push(share);
        }
        Self { fleet, services, sets, occupied, shares, loads }
    }

    /// A move that lowers the peak of a backend.
    fn relieve(&mut self, from: usize) -> Option<Scattered> {
        let (slot, height) = peak(&self.loads[from]);
        let moves =
            |service: &PlacedService| !service.is_pinned && !service.is_sandboxed && service.added == 0;
        let is_busy = |share: &[f64]| {
            let own = peak(share).1;
            own > 0.0 && share[slot] >= own / 2.0
        };
        let here = (0..self.services.len()).filter(|number| {
            self.sets[*number].contains(from)
                && self.fleet.is_in(from, &self.services[*number].home)
                && is_busy(&self.shares[*number])
        });
        let mut together: Vec<usize> = here.collect();
        // One service alone is a matter of growth.
        if together.len() < 2 {
            return None;
        }
        together.sort_by(|a, b| self.shares[*b][slot].total_cmp(&self.shares[*a][slot]));
        let moved = together.into_iter().filter(|number| moves(&self.services[*number]));
        let moved: Vec<usize> = moved.collect();
        moved.into_iter().find_map(|service| {
            let to = self.target(service, from, height)?;
            let name = |backend: usize| self.fleet.backends[backend].name.clone();
            Some(Scattered { service: self.services[service].name.clone(), from: name(from), to: name(to) })
        })
    }

    /// The backend that takes a service over.
    fn target(&mut self, service: usize, from: usize, height: f64) -> Option<usize> {
        let samples = samples(&self.shares[service]);
        let sampled = |backend: usize| samples.iter().map(|slot| self.loads[backend][*slot]).sum::<f64>();
        let home = &self.services[service].home;
        let is_free = |backend: &usize| {
            let one = self.fleet.backends[*backend];
            // Without a known utilisation, room is unknown: its replicas do not report and may be down, or have no CPU limit.
            self.fleet.is_in(*backend, home)
                && one.is_open
                && one.used_permille.is_some()
                && self.occupied.load(*backend) < one.capacity as usize
                && !self.sets[service].contains(*backend)
        };
        let mut others: Vec<usize> = (0..self.loads.len()).filter(is_free).collect();
        others.sort_by(|a, b| sampled(*a).total_cmp(&sampled(*b)));
        others.truncate(QUIETEST);
        let day = |backend: usize| self.loads[backend].iter().sum::<f64>();
        others.sort_by(|a, b| day(*a).total_cmp(&day(*b)));
        let before = self.occupied.remove(service)?;
        let found = others.into_iter().find(|to| {
            let mut load = self.loads[*to].clone();
            add(&mut load, &self.shares[service]);
            peak(&load).1 <= LOWER * height && self.occupied.is_free(&before.without(from).with(*to))
        });
        self.occupied.insert(service, before);
        found
    }
}

/// The slot with the highest load, and that load.
fn peak(load: &[f64]) -> (usize, f64) {
    let slots = load.iter().copied().enumerate();
    slots
        .max_by(|(a, one), (b, other)| one.total_cmp(other).then(Reverse(a).cmp(&Reverse(b))))
        .unwrap_or((0, 0.0))
}

fn add(load: &mut [f64], more: &[f64]) {
    load.iter_mut().zip(more).for_each(|(load, more)| *load += more);
}

/// Evenly spaced slots of the time around the peak in which the load is half of it or more: the width at half of the maximum.
fn samples(load: &[f64]) -> Vec<usize> {
    let (top, height) = peak(load);
    let count = load.len();
    let is_busy = |offset: &usize| load[(top + offset) % count] >= height / 2.0;
    let after = (1..count).take_while(is_busy).count();
    let before = (1..count - after).take_while(|offset| is_busy(&(count - offset))).count();
    let width = before + after + 1;
    (0..SAMPLES).map(|number| (top + count - before + number * width / SAMPLES) % count).collect()
}

#[cfg(test)]
mod tests {
    use fairmesh_model::Zone;

    use super::*;

    #[test]
    fn samples_lie_in_the_busy_hours_also_around_midnight() {
        let mut load = vec![1.0; 24];
        for (hour, busy) in [(22, 6.0), (23, 9.0), (0, 10.0), (1, 5.0), (2, 4.9)] {
            load[hour] = busy;
        }
        assert_eq!(samples(&load), [22, 22, 22, 23, 23, 0, 0, 0, 1, 1]);
        assert_eq!(samples(&[3.0; 4]).len(), SAMPLES, "a flat load is busy all day");
    }

    fn fleet() -> (Vec<Backend>, Vec<PlacedService>, BTreeMap<ServiceName, Vec<f64>>) {
        let backend = |name: &str| Backend {
            name: Label::new(name).unwrap(),
            zone: Zone::new(&name[..1]).unwrap(),
            capacity: 10,
            is_open: true,
            is_sandbox: name == "a9",
            used_permille: Some(100),
        };
        let service = |name: &str, present: &[&str]| PlacedService {
            name: ServiceName::new(name).unwrap(),
            home: Zone::new("a").unwrap(),
            count: 3,
            added: 0,
            present: present.iter().map(|name| Label::new(*name).unwrap()).collect(),
            is_pinned: false,
            given_back: 0,
            is_sandboxed: false,
        };
        let services = vec![
            service("red/day", &["a1", "a2", "b1"]),
            service("blue/day", &["a1", "a3", "b2"]),
            service("blue/night", &["a2", "a4", "b2"]),
            service("red/night", &["a3", "a4", "b1"]),
        ];
        let load = |name: &str, height: f64| {
            let busy = if name.ends_with("day") { 2 } else { 0 };
            let load = (0..4).map(|slot| if slot == busy { height } else { 1.0 });
            (ServiceName::new(name).unwrap(), load.collect())
        };
        let loads = [
            load("red/day", 40.0),
            load("blue/day", 60.0),
            load("blue/night", 50.0),
            load("red/night", 10.0),
        ];
        (["a1", "a2", "a3", "a4", "a9", "b1", "b2"].map(backend).into(), services, loads.into())
    }

    fn scattered(
        backends: &[Backend],
        services: &[PlacedService],
        loads: &BTreeMap<ServiceName, Vec<f64>>,
    ) -> Option<String> {
        let moved = scatter(DayLoads { backends, services, loads })?;
        Some(format!("{} from {} to {}", moved.service, moved.from, moved.to))
    }

    #[test]
    fn service_that_peaks_with_another_moves_to_a_backend_that_is_quiet_then() {
        let (backends, mut services, loads) = fleet();
        let moved = scattered(&backends, &services, &loads);
        assert_eq!(moved.as_deref(), Some("blue/day from a1 to a4"), "the busiest, to where it is night");
        // An operator placed it.
        services[1].is_pinned = true;
        assert_eq!(scattered(&backends, &services, &loads).as_deref(), Some("red/day from a1 to a4"));
        services[0].is_pinned = true;
        assert_eq!(scattered(&backends, &services, &loads), None);
    }

    #[test]
    fn nothing_moves_where_no_peak_is_lowered_or_combinations_would_meet() {
        let (mut backends, mut services, loads) = fleet();
        assert_eq!(scattered(&backends, &services, &BTreeMap::new()), None, "nothing is known");
        // On a4, each would have the combination of a service of the night.
        let before = services.clone();
        services[2].present =
            before[2].present.iter().filter(|name| name.as_str() != "b2").cloned().collect();
        services[2].present.insert(Label::new("b1").unwrap());
        services[3].present =
            before[3].present.iter().filter(|name| name.as_str() != "b1").cloned().collect();
        services[3].present.insert(Label::new("b2").unwrap());
        assert_eq!(scattered(&backends, &services, &loads), None);
        services = before;
        let reports = |backends: &mut [Backend], used| {
            backends
                .iter_mut()
                .filter(|one| one.name.as_str() == "a4")
                .for_each(|one| one.used_permille = used);
        };
        reports(&mut backends, None);
        assert_eq!(scattered(&backends, &services, &loads), None, "no replica of a4 reports");
        reports(&mut backends, Some(100));
        assert!(scattered(&backends, &services, &loads).is_some());
        backends.iter_mut().filter(|one| one.name.as_str() == "a4").for_each(|one| one.is_open = false);
        // On a2, blue/day would meet red/day again, and red/day on a3 blue/day.
        assert_eq!(scattered(&backends, &services, &loads), None);
    }
}
