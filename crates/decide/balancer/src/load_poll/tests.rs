use fairmesh_model::Balancing;

use super::*;
use crate::LoadReport;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1000 * MS;

/// A server that was called before.
#[derive(Default)]
struct Server {
    poll_state: Arc<PollState>,
    disconnected: bool,
}

impl PollTarget for Server {
    fn poll_state(&self) -> &Arc<PollState> {
        &self.poll_state
    }

    fn is_connected(&self) -> bool {
        !self.disconnected
    }
}

/// Returns a limiter whose next round may send the maximum number of polls.
fn full_budget() -> PollLimiter {
    let limiter = PollLimiter::default();
    for _ in 0..100 {
        limiter.budget.deposit();
    }
    limiter
}

/// Returns the indices of the endpoints selected by a round at ten seconds, given the times of their last reports. The
/// service time is 20 ms.
fn select(report_times: &[u64], servers: &[Server], limiter: &PollLimiter) -> (Vec<u32>, [u64; 3]) {
    let (stats, estimates) = (EndpointStats::default(), EstimateCounters::default());
    let nearest: Vec<u32> = (0..report_times.len() as u32).collect();
    let members: Vec<(u32, u32)> = nearest.iter().map(|&index| (index, 1000)).collect();
    stats.set_members(&members, &stats.config());
    for (&index, &at) in nearest.iter().zip(report_times) {
        stats.record_report(index, LoadReport { requests: Some(1), ..LoadReport::default() }, at);
    }
    let score = Score::default();
    let round = PollRound {
        limiter,
        stats: &stats,
        score,
        estimates: &estimates,
        service_time: 20 * MS,
        now: 10 * SECOND,
    };
    let chosen = round.select_targets(&nearest, |index| servers.get(index as usize));
    (chosen.into_iter().map(|(index, _)| index).collect(), estimates.counts())
}

#[test]
fn endpoints_with_oldest_load_reports_are_polled() {
    let report_times = [9 * SECOND, 10 * SECOND - MS, 5 * SECOND, 7 * SECOND];
    let servers: Vec<Server> = (0..4).map(|_| Server::default()).collect();
    let (polled, counts) = select(&report_times, &servers, &full_budget());
    assert_eq!(polled, [2, 3]);
    assert_eq!(counts, [1, 0, 1], "one is cached and one random; polls are counted once they are sent");
}

#[test]
fn unconnected_uncalled_and_busy_endpoints_are_not_polled_for_load() {
    let report_times = [5 * SECOND; 3];
    let servers = [Server { disconnected: true, ..Server::default() }, Server::default()];
    let guard = servers[1].poll_state.try_acquire();
    assert_eq!(select(&report_times, &servers, &full_budget()), (vec![], [0, 0, 3]));
    drop(guard);
    assert_eq!(select(&report_times, &servers, &full_budget()).0, [1]);
}

#[test]
fn one_attempt_per_20_ms_starts_load_poll_round_if_budget_allows() {
    let limiter = PollLimiter::default();
    let rounds = |times: std::ops::Range<u64>| times.filter(|&at| limiter.claim_round(at * MS)).count();
    assert_eq!(rounds(100..109), 0, "a round that may send no poll is of no use");
    assert_eq!(rounds(109..110), 1);
    assert_eq!(rounds(110..129), 0);
    assert_eq!(rounds(129..329), 10);
}

#[test]
fn load_poll_rounds_poll_at_most_tenth_of_attempts() {
    let (report_times, mut polled) = ([5 * SECOND; 4], 0);
    let limiter = PollLimiter::default();
    for at in 0..1000 {
        if limiter.claim_round(at * SECOND) {
            let servers: Vec<Server> = (0..4).map(|_| Server::default()).collect();
            polled += select(&report_times, &servers, &limiter).0.len();
        }
    }
    assert_eq!(polled, 100);
}

#[test]
fn consecutive_load_poll_rounds_examine_consecutive_endpoints() {
    let all: Vec<usize> = (0..100).collect();
    let limiter = PollLimiter::default();
    let rounds = (0..4).flat_map(|_| limiter.window(&all)).copied();
    assert!(rounds.eq((0..4 * MAX_EXAMINED).map(|position| position % 100)), "consecutive, wrapping around");
    let limiter = PollLimiter { examined: AtomicUsize::new(usize::MAX), ..PollLimiter::default() };
    assert!(limiter.window(&all[..5]).count() == 5 && limiter.window::<u8>(&[]).next().is_none());
}

#[test]
fn only_score_policy_with_polling_enabled_polls_servers_for_load() {
    let mut balancing = Balancing::default();
    assert_eq!(polling_config(&balancing), Some(balancing.score));
    balancing.policy = BalancingPolicy::LeastRequest;
    assert_eq!(polling_config(&balancing), None);
    balancing = Balancing { score: Score { poll: false, ..Score::default() }, ..Balancing::default() };
    assert_eq!(polling_config(&balancing), None);
}
