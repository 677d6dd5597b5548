use fairmesh_model::InstanceId;

use crate::{MIN_COVERED_MS, Usage, median};

/// Minimum number of comparable members. Fewer members have no typical value.
const MIN_MEMBERS: usize = 5;
/// Minimum number of calls of a member. Fewer calls have no typical cost.
const MIN_REQUESTS: u64 = 100;
/// Minimum time that a member's usage must cover, in milliseconds.
const MIN_MEMBER_MS: u64 = 12 * MIN_COVERED_MS as u64;

/// Usage of one instance of a service over some minutes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// The instance.
    pub instance: InstanceId,
    /// CPU time used, in microseconds.
    pub cpu_us: u64,
    /// Time covered, in milliseconds.
    pub covered_ms: u64,
    /// Calls begun in the covered time; 0 if calls are not counted.
    pub requests: u64,
}

impl Member {
    /// Adds the usage of one minute.
    pub(crate) fn add(&mut self, usage: &Usage) {
        self.cpu_us += usage.cpu_us;
        self.covered_ms += u64::from(usage.covered_ms);
        self.requests += usage.requests;
    }
}

/// The measure by which members are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// CPU time per call, among members with similar call rates.
    CpuPerRequest,
    /// CPU usage, if calls are not counted: equal load is assumed.
    Cpu,
}

/// An instance that differs significantly from its peers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outlier {
    /// The instance.
    pub instance: InstanceId,
    /// Deviation from the median of the peers, in thousandths of the median; positive if above.
    pub off: i64,
    /// The measure by which the instance was compared.
    pub by: Measure,
}

/// Returns the members of one service on one hardware type that deviate from the others, such as drifted machines
/// (Uber, findings).
///
/// An outlier is more than 3.5 scaled median absolute deviations from the median (Iglewicz and Hoaglin). The median
/// absolute deviation is taken as at least 2 % of the median, so members within 10 % of the median are never
/// reported. Mean and standard deviation were rejected: one drifted machine among ten shifts both so far that it
/// hides itself.
///
/// With fewer than five comparable members, the result is empty. Sorted by deviation, greatest first.
pub fn outliers(members: &[Member]) -> Vec<Outlier> {
    let seen = || members.iter().filter(|member| member.covered_ms >= MIN_MEMBER_MS);
    let busy: Vec<_> = seen().filter(|member| member.requests >= MIN_REQUESTS).collect();
    if busy.len() >= MIN_MEMBERS {
        // Nanoseconds per call.
        return deviating(&similar_load(&busy), Measure::CpuPerRequest, |member| {
            u64::try_from(u128::from(member.cpu_us) * 1_000 / u128::from(member.requests.max(1)))
                .unwrap_or(u64::MAX)
        });
    }
    let all: Vec<_> = seen().collect();
    if all.iter().any(|member| member.requests > 0) {
        // Calls are counted, but too few members have enough of them.
        return Vec::new();
    }
    deviating(&all, Measure::Cpu, |member| member.cpu_us.saturating_mul(1_000) / member.covered_ms.max(1))
}

/// Members whose call rate is between half and twice the median. At low rates, background work weighs more on each
/// call.
fn similar_load<'a>(members: &[&'a Member]) -> Vec<&'a Member> {
    let rate = |member: &Member| member.requests.saturating_mul(60_000) / member.covered_ms.max(1);
    let mut rates: Vec<u64> = members.iter().map(|member| rate(member)).collect();
    let usual = median(&mut rates).unwrap_or_default();
    let near = |member: &&&Member| (usual / 2..=usual.saturating_mul(2)).contains(&rate(member));
    members.iter().filter(near).copied().collect()
}

fn deviating(members: &[&Member], by: Measure, value: impl Fn(&Member) -> u64) -> Vec<Outlier> {
    let mut values: Vec<u64> = members.iter().map(|member| value(member)).collect();
    let usual = median(&mut values).unwrap_or_default();
    if members.len() < MIN_MEMBERS || usual == 0 {
        return Vec::new();
    }
    let mut deviations: Vec<u64> = values.iter().map(|value| value.abs_diff(usual)).collect();
    let deviation = median(&mut deviations).unwrap_or_default().max(usual / 50);
    let is_far = |value: u64| u128::from(value.abs_diff(usual)) * 6_745 > u128::from(deviation) * 35_000;
    let mut outliers: Vec<_> = members
        .iter()
        .filter(|member| is_far(value(member)))
        .map(|member| Outlier { instance: member.instance.clone(), off: off(value(member), usual), by })
        .collect();
    outliers.sort_by(|a, b| b.off.abs().cmp(&a.off.abs()).then_with(|| a.instance.cmp(&b.instance)));
    outliers
}

fn off(value: u64, usual: u64) -> i64 {
    let off = (i128::from(value) - i128::from(usual)) * 1_000 / i128::from(usual.max(1));
    i64::try_from(off).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(costs: &[(u64, u64)]) -> Vec<Member> {
        let member = |(i, (cpu_us, requests)): (usize, &(u64, u64))| Member {
            instance: InstanceId::new(format!("i{i}")).unwrap(),
            cpu_us: *cpu_us,
            covered_ms: 600_000,
            requests: *requests,
        };
        costs.iter().enumerate().map(member).collect()
    }

    fn named(costs: &[(u64, u64)]) -> Vec<(String, i64)> {
        outliers(&members(costs)).into_iter().map(|one| (one.instance.to_string(), one.off)).collect()
    }

    #[test]
    fn outlier_with_costlier_calls_is_found_even_at_low_load() {
        // About 1 ms a call; the fifth takes 1.4 ms, although it uses no more CPU because it gets the fewest calls.
        let costs = [(1_010, 1_000), (980, 990), (1_000, 1_000), (1_225, 1_200), (980, 700), (1_040, 1_030)];
        let costs = costs.map(|(ms, calls)| (ms * 1_000, calls));
        assert_eq!(named(&costs), [("i4".into(), 386)]);
    }

    #[test]
    fn outlier_instances_are_sorted_by_deviation() {
        let mut costs = vec![(1_000_000, 1_000); 8];
        costs.extend([(1_500_000, 1_000), (600_000, 1_000)]);
        assert_eq!(named(&costs), [("i8".into(), 500), ("i9".into(), -400)]);
    }

    #[test]
    fn equal_instances_small_groups_and_few_calls_give_no_outlier() {
        assert_eq!(named(&[(1_000_000, 1_000); 20]), []);
        let slightly: Vec<_> = (0..20).map(|i| (1_000_000 + i % 2 * 90_000, 1_000)).collect();
        assert_eq!(named(&slightly), [], "within 10 %");
        assert_eq!(named(&[(1, 1_000), (1, 1_000), (1, 1_000), (900, 1_000)]), [], "four are too few");
        assert_eq!(named(&[(1, 9), (1, 9), (1, 9), (1, 9), (1, 9), (900, 9)]), [], "too few calls");
    }

    #[test]
    fn instances_without_counted_calls_are_compared_by_cpu() {
        let mut costs = vec![(60_000_000, 0); 6];
        costs.push((90_000_000, 0));
        let found = outliers(&members(&costs));
        assert_eq!((found.len(), found[0].off, found[0].by), (1, 500, Measure::Cpu));
    }

    #[test]
    fn idle_instance_is_not_compared_with_busy_ones() {
        let mut costs = vec![(1_000_000, 1_000); 8];
        // Background work makes each of this member's few calls expensive.
        costs.push((500_000, 110));
        assert_eq!(named(&costs), []);
    }
}
