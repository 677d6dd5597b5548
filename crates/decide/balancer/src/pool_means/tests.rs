use fairmesh_model::{Balancing, InstanceId, Score, arith::Generator};

use crate::{
    BalancerConfig, CandidateSet, EndpointStats, LoadReport, Outcome, PickContext,
    endpoint_stats::LoadEstimate, pick,
};

const SECOND: u64 = 1_000_000_000;
const N: u32 = 20;

fn config() -> BalancerConfig {
    BalancerConfig::new(&Balancing::default())
}

/// Returns statistics of [`N`] equal endpoints.
fn stats() -> EndpointStats {
    let stats = EndpointStats::default();
    let ids: Vec<_> = (0..N).map(|i| InstanceId::new(format!("i{i}")).unwrap()).collect();
    let _ = stats.assign_indices(ids.iter().map(|id| (id, 0)));
    admit(&stats, N);
    stats
}

fn admit(stats: &EndpointStats, n: u32) {
    stats.set_members(&(0..n).map(|index| (index, 1000)).collect::<Vec<_>>(), &config());
}

fn requests(requests: u32) -> LoadReport {
    LoadReport { requests: Some(requests), ..LoadReport::default() }
}

fn cpu(cpu: u16) -> LoadReport {
    LoadReport { cpu: Some(cpu), ..LoadReport::default() }
}

/// Records a report of every endpoint every 100 ms for `seconds`, starting at `from`.
fn report_for(
    stats: &EndpointStats,
    from: u64,
    seconds: u64,
    report: impl Fn(u32) -> Option<LoadReport>,
) -> u64 {
    for tenth in 0..10 * seconds {
        for index in 0..N {
            if let Some(report) = report(index) {
                stats.record_report(index, report, from + tenth * SECOND / 10);
            }
        }
    }
    from + seconds * SECOND
}

/// The share of idle picks that go to `index`, as a multiple of the fair share.
fn share(stats: &EndpointStats, index: u32, now: u64) -> f64 {
    let (config, members) =
        (config(), CandidateSet::new(&(0..N).map(|index| (index, 1000)).collect::<Vec<_>>()));
    let context = PickContext::new(stats, config.pick_config(), &[], now);
    let picks = 20_000;
    let hits = (0..picks)
        .filter(|&seed| {
            pick(&members.as_candidates(), &context, &mut Generator::new(seed), &mut ()).unwrap().index
                == index
        })
        .count();
    hits as f64 * f64::from(N) / picks as f64
}

#[test]
fn load_by_other_callers_lowers_endpoints_share_and_decays() {
    let stats = stats();
    let now = report_for(&stats, SECOND, 10, |index| Some(requests(if index == 0 { 12 } else { 4 })));
    assert!(share(&stats, 0, now) < 0.1);
    assert!(share(&stats, 1, now) > 1.0);
    let later = share(&stats, 0, now + 60 * SECOND);
    assert!((0.85..1.1).contains(&later), "{later}");
}

#[test]
fn endpoint_without_reports_counts_as_averagely_loaded() {
    let stats = stats();
    let silent = |index| (index != 0).then(|| LoadReport { cpu: Some(500), ..requests(10) });
    let now = report_for(&stats, SECOND, 60, silent);
    let share = share(&stats, 0, now);
    assert!((0.85..1.15).contains(&share), "{share}");
}

#[test]
fn utilisation_moves_endpoint_shares_slowly_and_within_bounds() {
    let stats = stats();
    let busy = |index| Some(cpu(if index == 0 { 900 } else { 450 }));
    let now = report_for(&stats, SECOND, 1, busy);
    let early = share(&stats, 0, now);
    assert!((0.8..1.05).contains(&early), "utilisation moves shares slowly: {early}");
    let now = report_for(&stats, now, 60, busy);
    let later = share(&stats, 0, now);
    assert!((0.02..0.4).contains(&later), "{later}");
    let idle = |index| Some(cpu(if index == 0 { 0 } else { 450 }));
    let now = report_for(&stats, now, 120, idle);
    let share = share(&stats, 0, now);
    assert!((1.3..2.0).contains(&share), "a server that always reports idle: {share}");
}

#[test]
fn effect_of_single_absurd_load_report_on_shares_is_bounded() {
    let stats = stats();
    let now = report_for(&stats, SECOND, 10, |_| Some(LoadReport { cpu: Some(500), ..requests(4) }));
    stats.record_report(0, LoadReport { cpu: Some(u16::MAX), ..requests(10_000_000) }, now);
    let share = share(&stats, 0, now);
    assert!(share > 0.2, "{share}");
}

#[test]
fn load_common_to_all_endpoints_leaves_their_shares_equal() {
    let stats = stats();
    let mut now = SECOND;
    for cpu in [100, 900, 300] {
        now =
            report_for(&stats, now, 30, |_| Some(LoadReport { cpu: Some(cpu), ..requests(u32::from(cpu)) }));
        let share = share(&stats, 3, now);
        assert!((0.85..1.15).contains(&share), "{cpu}: {share}");
    }
}

#[test]
fn clock_jumps_leave_endpoint_shares_equal() {
    let stats = stats();
    let even = |_| Some(LoadReport { cpu: Some(500), ..requests(4) });
    let now = report_for(&stats, 1000 * SECOND, 5, even);
    for jumped in [1, now + 400 * 86_400 * SECOND, now] {
        stats.record_report(0, LoadReport { cpu: Some(500), ..requests(4) }, jumped);
        let share = share(&stats, 1, jumped);
        assert!((0.8..1.2).contains(&share), "{jumped}: {share}");
    }
}

#[test]
fn new_endpoint_slow_starts_with_and_without_reports() {
    for reports in [true, false] {
        let stats = stats();
        admit(&stats, N - 1);
        let now = match reports {
            true => report_for(&stats, SECOND, 10, |index| (index < N - 1).then(|| requests(8))),
            false => 10 * SECOND,
        };
        for index in 0..N - 1 {
            // A pick considers all endpoints, so that none is new afterwards.
            let config = config();
            let _ = PickContext::new(&stats, config.pick_config(), &[], now).score_endpoint(index, 1000);
            (0..4).for_each(|_| stats.begin(index));
        }
        admit(&stats, N);
        let at_once = share(&stats, N - 1, now);
        assert!(at_once < 0.5, "{reports}: {at_once}");
        (0..4).for_each(|_| stats.begin(N - 1));
        let later = share(&stats, N - 1, now + 60 * SECOND);
        assert!((0.7..1.2).contains(&later), "{reports}: {later}");
    }
}

#[test]
fn unfinished_response_stream_counts_as_sixteenth_of_call() {
    let stats = stats();
    stats.begin(0);
    assert!(share(&stats, 0, SECOND) < 0.1);
    assert!(stats.convert_to_stream(0));
    assert_eq!((stats.outstanding(0), stats.streams(0)), (0, 1));
    let share = share(&stats, 0, SECOND);
    assert!((0.8..1.1).contains(&share), "{share}");
    stats.finish_stream(0, Outcome::Ok, 0);
    assert_eq!(stats.streams(0), 0);
    assert!(!stats.convert_to_stream(0), "no call is in flight");
}

#[test]
fn score_rewards_accumulate_and_saturate() {
    let rewarding = |reward| {
        BalancerConfig::new(&Balancing {
            score: Score { reward, ..Score::default() },
            ..Balancing::default()
        })
    };
    let lead = |reward: u32, responses: u64| {
        let (stats, config) = (stats(), rewarding(reward));
        stats.set_members(&(0..N).map(|index| (index, 1000)).collect::<Vec<_>>(), &config);
        // Both send the same reports, but one responds a hundred times as often.
        let mut now = SECOND;
        for response in 0..responses {
            now += SECOND / 10;
            stats.record_report(0, requests(4), now);
            if response % 100 == 99 {
                stats.record_report(1, requests(4), now);
            }
        }
        let context = PickContext::new(&stats, config.pick_config(), &[], now);
        let score = |index| context.score_endpoint(index, 1000).score;
        (score(1) - score(0)) as f64 / f64::from(1 << crate::SCORE_BITS)
    };
    assert_eq!(lead(0, 1000), 0.0, "the default has no reward");
    let (once, often, saturated) = (lead(4, 1), lead(4, 200), lead(4, 5000));
    assert!((0.03..0.05).contains(&once), "{once}");
    assert!((0.4..1.0).contains(&often), "{often}");
    assert!((saturated - often).abs() < 0.05, "smoothing decays rewards: {saturated}");
}

/// Rewards have the values documented in `docs/balancing/constants.md`.
#[test]
fn score_rewards_saturate_at_documented_values() {
    let balancing = Balancing { score: Score { reward: 20, ..Score::default() }, ..Balancing::default() };
    let config = BalancerConfig::new(&balancing);
    for (per_second, rewards) in [(1, 11.4), (2, 15.6), (10, 22.3), (20, 23.6)] {
        let stats = stats();
        stats.set_members(&(0..N).map(|index| (index, 1000)).collect::<Vec<_>>(), &config);
        for response in 1..=60 * per_second {
            stats.record_report(0, requests(4), SECOND + response * SECOND / per_second);
        }
        let context = PickContext::new(&stats, config.pick_config(), &[], 61 * SECOND);
        let score = |index| context.score_endpoint(index, 1000).score;
        let lead = (score(1) - score(0)) as f64 / f64::from(1 << crate::SCORE_BITS) / 0.2;
        assert!((lead - rewards).abs() < 0.3, "{per_second} a second: {lead} instead of {rewards}");
    }
}

#[test]
fn load_reports_without_reward_leave_score_unchanged() {
    let balancing = Balancing { score: Score { reward: 50, ..Score::default() }, ..Balancing::default() };
    let (stats, config) = (stats(), BalancerConfig::new(&balancing));
    stats.set_members(&(0..N).map(|index| (index, 1000)).collect::<Vec<_>>(), &config);
    for tenth in 1..=100 {
        stats.record_report(0, requests(4), tenth * SECOND / 10);
        stats.record_unrewarded_report(1, requests(4), tenth * SECOND / 10);
    }
    let context = PickContext::new(&stats, config.pick_config(), &[], 10 * SECOND);
    let score = |index| context.score_endpoint(index, 1000).score;
    assert_eq!(score(1), score(2), "a report of the mean counts as no report");
    assert!(score(0) < score(1));
}

#[test]
fn new_endpoints_initial_load_excess_is_bounded_percentage_of_mean() {
    let config = config();
    assert_eq!(config.initial_excess(0, 0), 0, "the mean is 0");
    assert_eq!(
        config.initial_excess(0, 2 << LoadEstimate::BITS),
        1 << LoadEstimate::BITS,
        "half of the mean above the mean"
    );
    assert_eq!(
        config.initial_excess(2 << LoadEstimate::BITS, 0),
        3 << LoadEstimate::BITS,
        "plus the mean of own calls, of which it has none yet"
    );
    assert_eq!(
        config.initial_excess(0, 50 << LoadEstimate::BITS),
        3 << (LoadEstimate::BITS - 1),
        "at most 1.5 requests above the mean"
    );
    assert_eq!(
        config.initial_excess(10 << LoadEstimate::BITS, 50 << LoadEstimate::BITS),
        23 << (LoadEstimate::BITS - 1),
        "plus the mean of own calls"
    );
}
