//! CPU of services, attributed to the services whose calls were in flight. For operators.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use fairmesh_model::{CountedInterval, CpuBy, CpuPath, CpuUser, ServiceName, Tenant};
use fairmesh_signals::MAX_CPU_USERS;
use fairmesh_wire::v1;

/// Window of a request that gives none.
const DEFAULT_WINDOW: Duration = Duration::from_secs(600);
/// Maximum number of pairs of caller and service that have their own totals. Beyond it, the tenant whose services have the
/// most pairs loses the smallest one: servers choose the names of their callers.
const MAX_PAIRS: usize = 500;

/// CPU of services by caller, in microseconds since the start of the control plane.
#[derive(Clone, Debug, Default)]
pub(crate) struct CostTotals {
    pairs: BTreeMap<(ServiceName, CpuUser), u64>,
    other_us: u64,
}

impl CostTotals {
    /// Adds the CPU reported for an interval.
    pub(super) fn add(&mut self, interval: &CountedInterval) {
        for (CpuPath { service, by, user }, cpu_us) in &interval.cpu {
            if *by != CpuBy::Caller {
                continue;
            }
            let pair = (service.clone(), user.clone());
            let has_room = self.pairs.contains_key(&pair) || self.make_room(&service.tenant);
            let sum = if has_room { self.pairs.entry(pair).or_default() } else { &mut self.other_us };
            *sum = sum.saturating_add(*cpu_us);
        }
    }

    /// Makes room for a pair of a tenant's service. Returns whether there is room.
    fn make_room(&mut self, tenant: &Tenant) -> bool {
        if self.pairs.len() < MAX_PAIRS {
            return true;
        }
        let mut by_tenant = BTreeMap::<&Tenant, usize>::new();
        for (service, _) in self.pairs.keys() {
            *by_tenant.entry(&service.tenant).or_default() += 1;
        }
        let own = by_tenant.get(tenant).copied().unwrap_or_default();
        let largest = by_tenant.into_iter().max_by_key(|(_, pairs)| *pairs);
        let Some((largest, _)) = largest.filter(|(_, pairs)| *pairs > own + 1) else { return false };
        let of_largest = self.pairs.iter().filter(|((service, _), _)| service.tenant == *largest);
        let Some(smallest) = of_largest.min_by_key(|(_, cpu_us)| **cpu_us).map(|(pair, _)| pair.clone())
        else {
            return false;
        };
        self.other_us = self.other_us.saturating_add(self.pairs.remove(&smallest).unwrap_or_default());
        true
    }

    /// The total of each pair of caller and service, in seconds. The key is `None` for the sum of all pairs
    /// beyond the maximum.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Option<(&CpuUser, &ServiceName)>, f64)> {
        let seconds = |cpu_us: u64| cpu_us as f64 / 1e6;
        let pairs = self.pairs.iter();
        let pairs = pairs.map(move |((service, user), cpu_us)| (Some((user, service)), seconds(*cpu_us)));
        pairs.chain((self.other_us > 0).then(|| (None, seconds(self.other_us))))
    }
}

/// The window of a request; 0 means the default.
pub(super) fn window(window_s: u32) -> Duration {
    if window_s == 0 { DEFAULT_WINDOW } else { Duration::from_secs(window_s.into()) }
}

/// The rows of a view, with the servers' values summed. Services beyond the maximum are summed as others.
pub(super) fn rows<'a>(cpu: impl Iterator<Item = (&'a CpuPath, Vec<u64>)>) -> Vec<v1::CostRow> {
    let cpu: BTreeMap<_, _> = cpu.map(|(path, minutes)| (&path.user, minutes)).collect();
    let is_service = |user: &CpuUser| matches!(user, CpuUser::Service(_));
    let mut services: Vec<_> = cpu.iter().filter(|(user, _)| is_service(user)).collect();
    services.sort_by_key(|(_, minutes)| Reverse(minutes.iter().sum::<u64>()));
    let own: BTreeSet<_> = services.into_iter().take(MAX_CPU_USERS).map(|(user, _)| *user).collect();
    let mut rows = BTreeMap::<String, Vec<u64>>::new();
    for (user, minutes) in &cpu {
        let shown = if is_service(user) && !own.contains(user) { &CpuUser::Other } else { *user };
        let sums = rows.entry(shown.to_string()).or_insert_with(|| vec![0; minutes.len()]);
        sums.iter_mut().zip(minutes).for_each(|(sum, cpu_us)| *sum = sum.saturating_add(*cpu_us));
    }
    let row = |(user, minutes_us): (String, Vec<u64>)| v1::CostRow {
        user,
        cpu_us: minutes_us.iter().fold(0, |sum, cpu_us| sum.saturating_add(*cpu_us)),
        minutes_us,
    };
    let mut rows: Vec<_> = rows.into_iter().map(row).collect();
    rows.sort_by_key(|row| Reverse(row.cpu_us));
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(user: &str) -> CpuPath {
        let service = ServiceName::new("shop/cart").unwrap();
        CpuPath { service, by: CpuBy::Caller, user: user.parse().unwrap() }
    }

    #[test]
    fn cpu_cost_of_services_over_maximum_shares_one_row() {
        let mut paths: Vec<_> = (0..40).map(|n| (path(&format!("shop/s{n:02}")), vec![n, 1])).collect();
        paths.extend([(path("(idle)"), vec![0, 7]), (path("(other)"), vec![1, 0])]);
        let total: u64 = paths.iter().flat_map(|(_, minutes)| minutes).sum();
        let rows = rows(paths.iter().map(|(path, minutes)| (path, minutes.clone())));
        assert_eq!(rows.len(), MAX_CPU_USERS + 2);
        assert_eq!(rows.iter().map(|row| row.cpu_us).sum::<u64>(), total);
        assert_eq!((rows[0].user.as_str(), &rows[0].minutes_us), ("shop/s39", &vec![39, 1]));
        let other = rows.iter().find(|row| row.user == "(other)").unwrap();
        assert_eq!(
            other.minutes_us,
            [29, 8],
            "the eight with the least, and what servers did not tell apart"
        );
    }

    #[test]
    fn tenant_with_many_invented_callers_leaves_cpu_cost_totals_to_others() {
        let mut totals = CostTotals::default();
        let interval = |cpu| CountedInterval { cpu, ..CountedInterval::default() };
        totals.add(&interval((0..2 * MAX_PAIRS).map(|n| (path(&format!("shop/s{n:04}")), 1)).collect()));
        let vault = ServiceName::new("bank/vault").unwrap();
        let own = CpuPath { service: vault.clone(), ..path("bank/web") };
        totals.add(&interval([(own, 7)].into()));
        let found = totals.pairs.iter().find(|((service, _), _)| *service == vault);
        assert_eq!((found.map(|(_, cpu_us)| *cpu_us), totals.pairs.len()), (Some(7), MAX_PAIRS));
        let sum: u64 = totals.pairs.values().sum();
        assert_eq!(sum + totals.other_us, 2 * MAX_PAIRS as u64 + 7, "nothing is lost");
    }

    #[test]
    fn cpu_cost_totals_are_bounded_and_count_only_cpu_by_caller() {
        let mut totals = CostTotals::default();
        let mut cpu: BTreeMap<_, _> =
            (0..MAX_PAIRS + 3).map(|n| (path(&format!("shop/s{n:03}")), 2)).collect();
        cpu.insert(CpuPath { by: CpuBy::Origin, ..path("shop/s000") }, 100);
        let interval = CountedInterval { cpu, ..CountedInterval::default() };
        totals.add(&interval);
        totals.add(&interval);
        assert_eq!((totals.pairs.len(), totals.other_us), (MAX_PAIRS, 12));
        let (sum, expected) =
            (totals.iter().map(|(_, seconds)| seconds).sum::<f64>(), 4e-6 * (MAX_PAIRS + 3) as f64);
        assert!((sum - expected).abs() < 1e-9, "{sum} is not {expected}");
    }
}
