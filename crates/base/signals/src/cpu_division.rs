//! CPU of a server, attributed to the callers and origins whose calls were in flight.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
};

use fairmesh_model::{CpuBy, CpuUser};

use crate::in_flight::InFlightTime;

/// Maximum number of services that CPU is attributed to between two readings. Further services count as `Other`.
pub const MAX_CPU_USERS: usize = 32;

/// The caller and the origin of calls.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Chain {
    /// The calling service.
    pub caller: CpuUser,
    /// The first service of the chain.
    pub origin: CpuUser,
}

/// Divides the CPU of a server among callers, in proportion to the time in which their calls were in flight. Each
/// caller is charged for what its calls occupy: CPU, memory or a place in a queue. The rejected alternative, CPU time
/// per call, is unknown where calls share threads.
#[derive(Debug, Default)]
pub struct CpuDivision {
    last: HashMap<Chain, InFlightTime>,
    /// The epoch and the total CPU time at the last reading, in microseconds.
    cpu: Option<(u32, u64)>,
}

impl CpuDivision {
    /// Attributes the CPU used since the last reading, once to callers and once to origins. Each attribution adds up
    /// to the whole. `used_us` is a running total in microseconds; two totals are comparable if their `epoch` is
    /// equal. `in_flight` lists every chain that the server ever had.
    pub fn read(
        &mut self,
        (epoch, used_us): (u32, u64),
        in_flight: impl IntoIterator<Item = (Chain, InFlightTime)>,
    ) -> BTreeMap<(CpuBy, CpuUser), u64> {
        let now: HashMap<_, _> = in_flight.into_iter().collect();
        let before = std::mem::replace(&mut self.last, now);
        let last_cpu = self.cpu.replace((epoch, used_us)).filter(|(last, _)| *last == epoch);
        let Some((_, last_us)) = last_cpu else { return BTreeMap::new() };
        let since = |(chain, time): (&Chain, &InFlightTime)| {
            (chain.clone(), time.since(before.get(chain).copied().unwrap_or_default()))
        };
        divide(used_us.saturating_sub(last_us), self.last.iter().map(since))
    }
}

fn divide(cpu_us: u64, in_flight: impl Iterator<Item = (Chain, u64)>) -> BTreeMap<(CpuBy, CpuUser), u64> {
    let (mut callers, mut origins) = (BTreeMap::new(), BTreeMap::new());
    for (Chain { caller, origin }, time_us) in in_flight {
        *callers.entry(caller).or_default() += time_us;
        *origins.entry(origin).or_default() += time_us;
    }
    let parts = |by, times| parts(cpu_us, times).into_iter().map(move |(user, part)| ((by, user), part));
    parts(CpuBy::Caller, callers).chain(parts(CpuBy::Origin, origins)).collect()
}

/// Divides `cpu_us` in proportion to `times`. The user with the longest time gets the rounding remainder.
fn parts(cpu_us: u64, times: BTreeMap<CpuUser, u64>) -> BTreeMap<CpuUser, u64> {
    let mut times: Vec<_> = times.into_iter().filter(|(_, time_us)| *time_us > 0).collect();
    let total: u128 = times.iter().map(|(_, time_us)| u128::from(*time_us)).sum();
    if total == 0 {
        times.push((CpuUser::Idle, 1));
    }
    let total = total.max(1);
    // Equal times are sorted by name, so that the result is deterministic.
    times.sort_by(|(a, a_us), (b, b_us)| (Reverse(a_us), a).cmp(&(Reverse(b_us), b)));
    let mut parts = BTreeMap::<_, u64>::new();
    let (mut services, mut left_us) = (0, cpu_us);
    for (user, time_us) in &times {
        services += usize::from(matches!(user, CpuUser::Service(_)));
        let is_other = matches!(user, CpuUser::Service(_)) && services > MAX_CPU_USERS;
        // At most `cpu_us`, since `time_us` is at most `total`.
        let part = (u128::from(cpu_us) * u128::from(*time_us) / total) as u64;
        left_us -= part;
        *parts.entry(if is_other { CpuUser::Other } else { user.clone() }).or_default() += part;
    }
    if let Some(first) = times.first().and_then(|(user, _)| parts.get_mut(user)) {
        *first += left_us;
    }
    parts.retain(|_, part| *part > 0);
    parts
}

#[cfg(test)]
mod tests {
    use fairmesh_model::ServiceName;
    use proptest::prelude::*;

    use super::*;
    use crate::InFlightMeter;

    fn user(name: &str) -> CpuUser {
        CpuUser::Service(ServiceName::new(name).unwrap())
    }

    fn chain(caller: &str, origin: &str) -> Chain {
        Chain { caller: user(caller), origin: user(origin) }
    }

    fn sum(parts: &BTreeMap<(CpuBy, CpuUser), u64>, by: CpuBy) -> u64 {
        parts.iter().filter(|((of, _), _)| *of == by).map(|(_, part)| part).sum()
    }

    #[test]
    fn cpu_is_attributed_by_call_time_in_flight_since_last_reading() {
        let (web, ads) = (InFlightMeter::default(), InFlightMeter::default());
        let mut division = CpuDivision::default();
        let mut read = |cpu, now_us| {
            let times = [(chain("shop/web", "shop/web"), &web), (chain("shop/cart", "shop/ads"), &ads)];
            division.read(cpu, times.map(|(chain, meter)| (chain, meter.read(now_us))))
        };
        assert!(read((1, 5_000_000), 0).is_empty(), "what was used before is not known");
        web.begin(0);
        ads.begin(2_500_000);
        let parts = read((1, 5_400_001), 5_000_000);
        assert_eq!(parts[&(CpuBy::Caller, user("shop/web"))], 266_668);
        assert_eq!(parts[&(CpuBy::Caller, user("shop/cart"))], 133_333);
        assert_eq!(parts[&(CpuBy::Origin, user("shop/ads"))], 133_333);
        web.end(5_000_000);
        ads.end(5_000_000);
        let idle = read((1, 5_400_011), 6_000_000);
        let expected = [CpuBy::Caller, CpuBy::Origin].map(|by| ((by, CpuUser::Idle), 10));
        assert_eq!(idle, BTreeMap::from(expected));
        assert!(read((2, 9_000_000), 7_000_000).is_empty(), "another source of the counters");
    }

    #[test]
    fn cpu_of_services_beyond_limit_is_counted_as_other() {
        let of = |number: usize| (chain(&format!("shop/s{number:02}"), "shop/web"), 10 + number as u64);
        let parts = divide(1_000, (0..40).map(of));
        let callers = parts.keys().filter(|(by, _)| *by == CpuBy::Caller);
        assert_eq!(callers.count(), MAX_CPU_USERS + 1);
        assert!(parts.contains_key(&(CpuBy::Caller, user("shop/s39"))));
        assert!(!parts.contains_key(&(CpuBy::Caller, user("shop/s00"))), "it has the least");
        assert!(parts[&(CpuBy::Caller, CpuUser::Other)] > 0);
        assert_eq!(parts[&(CpuBy::Origin, user("shop/web"))], 1_000);
    }

    proptest! {
        #[test]
        fn attributed_cpu_parts_add_up_to_total(
            cpu_us in 0_u64..1 << 50,
            times in prop::collection::vec((0_usize..60, 0_usize..60, 0_u64..1 << 40), 0..100),
        ) {
            let times = times.into_iter().map(|(caller, origin, time_us)| {
                (chain(&format!("shop/s{caller}"), &format!("shop/s{origin}")), time_us)
            });
            let parts = divide(cpu_us, times);
            prop_assert_eq!([CpuBy::Caller, CpuBy::Origin].map(|by| sum(&parts, by)), [cpu_us; 2]);
        }
    }
}
