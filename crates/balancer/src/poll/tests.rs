use fairmesh_model::Balancing;

use super::*;
use crate::LoadReport;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1000 * MS;

/// A server that is called now and then.
#[derive(Default)]
struct Server {
    asked: Arc<Asked>,
    away: bool,
}

impl Askable for Server {
    fn asked(&self) -> &Arc<Asked> {
        &self.asked
    }

    fn is_connected(&self) -> bool {
        !self.away
    }
}

/// A pace at which the next survey may ask as many as any may.
fn paid() -> Pace {
    let pace = Pace::default();
    for _ in 0..100 {
        pace.allowance.earn();
    }
    pace
}

/// What a survey at ten seconds asks, by index, of endpoints that last reported at these times; servers work for 20 ms.
fn asks(heard: &[u64], servers: &[Server], pace: &Pace) -> (Vec<u32>, [u64; 3]) {
    let (slots, estimates) = (Slots::default(), Estimates::default());
    let nearest: Vec<u32> = (0..heard.len() as u32).collect();
    let members: Vec<(u32, u32)> = nearest.iter().map(|&index| (index, 1000)).collect();
    slots.admit(&members, &slots.rule());
    for (&index, &at) in nearest.iter().zip(heard) {
        slots.report(index, LoadReport { requests: Some(1), ..LoadReport::default() }, at);
    }
    let score = Score::default();
    let survey =
        Survey { pace, slots: &slots, score, estimates: &estimates, work: 20 * MS, now: 10 * SECOND };
    let chosen = survey.look(&nearest, |index| servers.get(index as usize));
    (chosen.into_iter().map(|(index, _)| index).collect(), estimates.counts())
}

#[test]
fn those_are_asked_that_were_heard_of_longest_ago() {
    let heard = [9 * SECOND, 10 * SECOND - MS, 5 * SECOND, 7 * SECOND];
    let servers: Vec<Server> = (0..4).map(|_| Server::default()).collect();
    let (asked, counts) = asks(&heard, &servers, &paid());
    assert_eq!(asked, [2, 3]);
    assert_eq!(
        counts,
        [1, 0, 1],
        "one is fresh, and one has to be left to chance; questions count once they are sent"
    );
}

#[test]
fn nobody_is_asked_who_is_not_connected_or_was_never_called_or_is_asked_already() {
    let heard = [5 * SECOND; 3];
    let servers = [Server { away: true, ..Server::default() }, Server::default()];
    let claim = servers[1].asked.claim();
    assert_eq!(asks(&heard, &servers, &paid()), (vec![], [0, 0, 3]));
    drop(claim);
    assert_eq!(asks(&heard, &servers, &paid()).0, [1]);
}

#[test]
fn a_survey_follows_a_try_in_twenty_milliseconds_once_ten_have_paid() {
    let pace = Pace::default();
    let surveys = |times: std::ops::Range<u64>| times.filter(|&at| pace.claims_survey(at * MS)).count();
    assert_eq!(surveys(100..109), 0, "a survey that could ask nobody has no use");
    assert_eq!(surveys(109..110), 1);
    assert_eq!(surveys(110..129), 0);
    assert_eq!(surveys(129..329), 10);
}

#[test]
fn what_is_asked_stays_a_tenth_of_tries() {
    let (heard, mut asked) = ([5 * SECOND; 4], 0);
    let pace = Pace::default();
    for at in 0..1000 {
        if pace.claims_survey(at * SECOND) {
            let servers: Vec<Server> = (0..4).map(|_| Server::default()).collect();
            asked += asks(&heard, &servers, &pace).0.len();
        }
    }
    assert_eq!(asked, 100);
}

#[test]
fn a_survey_looks_at_few_and_the_next_goes_on_from_there() {
    let all: Vec<usize> = (0..100).collect();
    let pace = Pace::default();
    let surveys = (0..4).flat_map(|_| pace.window(&all)).copied();
    assert!(surveys.eq((0..4 * WINDOW).map(|place| place % 100)), "in turn, and around");
    let pace = Pace { looked: AtomicUsize::new(usize::MAX), ..Pace::default() };
    assert!(pace.window(&all[..5]).count() == 5 && pace.window::<u8>(&[]).next().is_none());
}

#[test]
fn nobody_asks_where_load_does_not_decide() {
    let mut balancing = Balancing::default();
    assert_eq!(polled(&balancing), Some(balancing.score));
    balancing.policy = BalancingPolicy::LeastRequest;
    assert_eq!(polled(&balancing), None);
    balancing = Balancing { score: Score { poll: false, ..Score::default() }, ..Balancing::default() };
    assert_eq!(polled(&balancing), None);
}
