//! Loads of services over a day, for taking services apart that peak together (Canal Mesh, section 6.3).

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use fairmesh_model::ServiceName;

/// Parts of a day, each with one mean.
pub const SLOTS: usize = 48;
/// Length of a part.
const SLOT: Duration = Duration::from_secs(86_400 / SLOTS as u64);
/// Maximum number of services whose loads are kept: those with the most requests a second, on average.
const MAX_SERVICES: usize = 10_000;

/// The requests a second of services in each half hour of the last day.
#[derive(Clone, Debug, Default)]
pub struct ServiceDays {
    services: BTreeMap<ServiceName, Box<[Mean; SLOTS]>>,
    /// The parts of the day that were observed.
    seen: BTreeSet<usize>,
    /// The part observed last, counted from the start.
    last: Option<u64>,
}

/// The mean of what was observed in one part of the day.
#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    sum: f32,
    count: u32,
}

impl ServiceDays {
    /// Adds the present rates of all services, in requests a second.
    pub fn observe<'a>(&mut self, rates: impl Iterator<Item = (&'a ServiceName, f64)>, now_ms: u64) {
        let at = now_ms / u64::try_from(SLOT.as_millis()).unwrap_or(u64::MAX);
        let slot = (at % SLOTS as u64) as usize;
        if self.last != Some(at) {
            // What was here a day ago is replaced. Parts in between were not observed.
            self.seen.insert(slot);
            self.services.values_mut().for_each(|day| day[slot] = Mean::default());
            self.services.retain(|_, day| day.iter().any(|mean| mean.count > 0));
            self.last = Some(at);
        }
        for (service, rate) in rates {
            let day =
                self.services.entry(service.clone()).or_insert_with(|| Box::new([Mean::default(); SLOTS]));
            #[allow(clippy::cast_possible_truncation, reason = "a rate needs no more digits")]
            let rate = rate as f32;
            day[slot].sum += rate;
            day[slot].count += 1;
        }
        self.forget_quietest();
    }

    /// Forgets the services with the fewest requests a second, if there are more than [`MAX_SERVICES`].
    fn forget_quietest(&mut self) {
        let excess = self.services.len().saturating_sub(MAX_SERVICES);
        if excess == 0 {
            return;
        }
        let rate = |day: &[Mean; SLOTS]| {
            let (sum, count) =
                day.iter().fold((0.0, 0), |(sum, count), mean| (sum + mean.sum, count + mean.count));
            sum / count.max(1) as f32
        };
        let mut by_rate: Vec<_> = self.services.iter().map(|(name, day)| (rate(day), name.clone())).collect();
        by_rate.select_nth_unstable_by(excess - 1, |(a, _), (b, _)| a.total_cmp(b));
        by_rate.truncate(excess);
        by_rate.iter().for_each(|(_, name)| drop(self.services.remove(name)));
    }

    /// The loads of a whole day by service; `None` until a day has been observed. A service without calls in a part has none.
    pub fn whole(&self) -> Option<BTreeMap<ServiceName, Vec<f64>>> {
        let load = |day: &[Mean; SLOTS]| {
            let mean = |mean: &Mean| f64::from(mean.sum) / f64::from(mean.count.max(1));
            day.iter().map(mean).collect()
        };
        let all = self.services.iter().map(|(service, day)| (service.clone(), load(day)));
        (self.seen.len() == SLOTS).then(|| all.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HALF_HOUR: u64 = 1_800_000;

    #[test]
    fn day_is_known_once_every_half_hour_was_observed() {
        let (web, gone) = (ServiceName::new("red/web").unwrap(), ServiceName::new("red/gone").unwrap());
        let mut days = ServiceDays::default();
        for slot in 0..SLOTS as u64 {
            assert!(days.whole().is_none(), "{slot}");
            for second in [0, 1_000] {
                let rates = [(&web, (slot + second / 500) as f64), (&gone, 1.0)];
                days.observe(rates.into_iter(), slot * HALF_HOUR + second);
            }
        }
        let whole = days.whole().unwrap();
        assert!((whole[&web][7] - 8.0).abs() < 1e-6 && whole[&gone].len() == SLOTS);
        // The next day replaces it.
        for slot in SLOTS as u64..2 * SLOTS as u64 {
            days.observe([(&web, 100.0)].into_iter(), slot * HALF_HOUR);
        }
        let whole = days.whole().unwrap();
        assert!(!whole.contains_key(&gone) && whole[&web].iter().all(|load| (load - 100.0).abs() < 1e-6));
    }

    #[test]
    fn day_keeps_the_busiest_services_whichever_came_first() {
        let name = |number: usize| ServiceName::new(format!("red/s{number}")).unwrap();
        let quiet: Vec<ServiceName> = (0..MAX_SERVICES).map(name).collect();
        let (busy, quietest) = (ServiceName::new("red/busy").unwrap(), &quiet[7]);
        let mut days = ServiceDays::default();
        let rate = |service: &ServiceName| if service == quietest { 0.5 } else { 1.0 };
        days.observe(quiet.iter().map(|service| (service, rate(service))), 0);
        days.observe([(&busy, 100.0)].into_iter(), 1_000);
        assert_eq!(days.services.len(), MAX_SERVICES);
        assert!(days.services.contains_key(&busy) && !days.services.contains_key(quietest));
    }
}
