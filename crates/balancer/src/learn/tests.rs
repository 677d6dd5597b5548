use fairmesh_model::{Balancing, InstanceId, Score, arith::Generator};

use crate::{Contest, LoadReport, Members, Outcome, Rule, Slots, pick, slots::Load};

const SECOND: u64 = 1_000_000_000;
const N: u32 = 20;

fn rule() -> Rule {
    Rule::new(&Balancing::default())
}

/// Slots of [`N`] equal endpoints.
fn slots() -> Slots {
    let slots = Slots::default();
    let ids: Vec<_> = (0..N).map(|i| InstanceId::new(format!("i{i}")).unwrap()).collect();
    let _ = slots.assign(&ids);
    admit(&slots, N);
    slots
}

fn admit(slots: &Slots, n: u32) {
    slots.admit(&(0..n).map(|index| (index, 1000)).collect::<Vec<_>>(), &rule());
}

fn requests(requests: u32) -> LoadReport {
    LoadReport { requests: Some(requests), ..LoadReport::default() }
}

fn cpu(cpu: u16) -> LoadReport {
    LoadReport { cpu: Some(cpu), ..LoadReport::default() }
}

/// What every endpoint reports, once in each tenth of `seconds` of a second, from `from` on.
fn report_for(slots: &Slots, from: u64, seconds: u64, report: impl Fn(u32) -> Option<LoadReport>) -> u64 {
    for tenth in 0..10 * seconds {
        for index in 0..N {
            if let Some(report) = report(index) {
                slots.report(index, report, from + tenth * SECOND / 10);
            }
        }
    }
    from + seconds * SECOND
}

/// The share of idle picks that go to `index`, as a multiple of a fair one.
fn share(slots: &Slots, index: u32, now: u64) -> f64 {
    let (rule, members) = (rule(), Members::new(&(0..N).map(|index| (index, 1000)).collect::<Vec<_>>()));
    let contest = Contest::new(slots, rule.terms(), &[], now);
    let picks = 20_000;
    let hits = (0..picks)
        .filter(|&seed| {
            pick(&members.group(), &contest, &mut Generator::new(seed), &mut ()).unwrap().index == index
        })
        .count();
    hits as f64 * f64::from(N) / picks as f64
}

#[test]
fn who_has_more_of_others_requests_gets_less_and_is_soon_as_good_as_any() {
    let slots = slots();
    let now = report_for(&slots, SECOND, 10, |index| Some(requests(if index == 0 { 12 } else { 4 })));
    assert!(share(&slots, 0, now) < 0.1);
    assert!(share(&slots, 1, now) > 1.0);
    let later = share(&slots, 0, now + 60 * SECOND);
    assert!((0.85..1.1).contains(&later), "{later}");
}

#[test]
fn who_says_nothing_is_neither_idle_nor_busy() {
    let slots = slots();
    let silent = |index| (index != 0).then(|| LoadReport { cpu: Some(500), ..requests(10) });
    let now = report_for(&slots, SECOND, 60, silent);
    let share = share(&slots, 0, now);
    assert!((0.85..1.15).contains(&share), "{share}");
}

#[test]
fn utilisation_moves_shares_slowly_and_within_bounds() {
    let slots = slots();
    let hot = |index| Some(cpu(if index == 0 { 900 } else { 450 }));
    let now = report_for(&slots, SECOND, 1, hot);
    let soon = share(&slots, 0, now);
    assert!((0.8..1.05).contains(&soon), "one second is no reason to run: {soon}");
    let now = report_for(&slots, now, 60, hot);
    let later = share(&slots, 0, now);
    assert!((0.02..0.4).contains(&later), "{later}");
    let idle = |index| Some(cpu(if index == 0 { 0 } else { 450 }));
    let now = report_for(&slots, now, 120, idle);
    let attracted = share(&slots, 0, now);
    assert!((1.3..2.0).contains(&attracted), "a server that claims to be idle for ever: {attracted}");
}

#[test]
fn one_absurd_report_moves_little() {
    let slots = slots();
    let now = report_for(&slots, SECOND, 10, |_| Some(LoadReport { cpu: Some(500), ..requests(4) }));
    slots.report(0, LoadReport { cpu: Some(u16::MAX), ..requests(10_000_000) }, now);
    let share = share(&slots, 0, now);
    assert!(share > 0.2, "{share}");
}

#[test]
fn what_is_common_to_all_changes_nothing() {
    let slots = slots();
    let mut now = SECOND;
    for cpu in [100, 900, 300] {
        now =
            report_for(&slots, now, 30, |_| Some(LoadReport { cpu: Some(cpu), ..requests(u32::from(cpu)) }));
        let share = share(&slots, 3, now);
        assert!((0.85..1.15).contains(&share), "{cpu}: {share}");
    }
}

#[test]
fn clocks_that_jump_do_no_harm() {
    let slots = slots();
    let even = |_| Some(LoadReport { cpu: Some(500), ..requests(4) });
    let now = report_for(&slots, 1000 * SECOND, 5, even);
    for jumped in [1, now + 400 * 86_400 * SECOND, now] {
        slots.report(0, LoadReport { cpu: Some(500), ..requests(4) }, jumped);
        let share = share(&slots, 1, jumped);
        assert!((0.8..1.2).contains(&share), "{jumped}: {share}");
    }
}

#[test]
fn a_new_endpoint_starts_gently_with_reports_and_without() {
    for reports in [true, false] {
        let slots = slots();
        admit(&slots, N - 1);
        let now = match reports {
            true => report_for(&slots, SECOND, 10, |index| (index < N - 1).then(|| requests(8))),
            false => 10 * SECOND,
        };
        for index in 0..N - 1 {
            // Looked at once, so that they are not new any more.
            let rule = rule();
            let _ = Contest::new(&slots, rule.terms(), &[], now).stand(index, 1000);
            (0..4).for_each(|_| slots.begin(index));
        }
        admit(&slots, N);
        let at_once = share(&slots, N - 1, now);
        assert!(at_once < 0.5, "{reports}: {at_once}");
        (0..4).for_each(|_| slots.begin(N - 1));
        let later = share(&slots, N - 1, now + 60 * SECOND);
        assert!((0.7..1.2).contains(&later), "{reports}: {later}");
    }
}

#[test]
fn a_stream_counts_little_and_ends_as_one() {
    let slots = slots();
    slots.begin(0);
    assert!(share(&slots, 0, SECOND) < 0.1);
    assert!(slots.call_becomes_stream(0));
    assert_eq!((slots.outstanding(0), slots.streams(0)), (0, 1));
    let share = share(&slots, 0, SECOND);
    assert!((0.8..1.1).contains(&share), "{share}");
    slots.finish_stream(0, Outcome::Ok, 0);
    assert_eq!(slots.streams(0), 0);
    assert!(!slots.call_becomes_stream(0), "nothing is under way");
}

#[test]
fn an_answer_is_rewarded_a_little_and_never_without_end() {
    let rewarding = |reward| {
        Rule::new(&Balancing { score: Score { reward, ..Score::default() }, ..Balancing::default() })
    };
    let lead = |reward: u32, answers: u64| {
        let (slots, rule) = (slots(), rewarding(reward));
        slots.admit(&(0..N).map(|index| (index, 1000)).collect::<Vec<_>>(), &rule);
        // Both say the same; one of them answers a hundred times as often.
        let mut now = SECOND;
        for answer in 0..answers {
            now += SECOND / 10;
            slots.report(0, requests(4), now);
            if answer % 100 == 99 {
                slots.report(1, requests(4), now);
            }
        }
        let contest = Contest::new(&slots, rule.terms(), &[], now);
        let score = |index| contest.stand(index, 1000).score;
        (score(1) - score(0)) as f64 / f64::from(1 << crate::SCORE_BITS)
    };
    assert_eq!(lead(0, 1000), 0.0, "nobody is rewarded unless somebody asks for it");
    let (once, often, endless) = (lead(4, 1), lead(4, 200), lead(4, 5000));
    assert!((0.03..0.05).contains(&once), "{once}");
    assert!((0.4..1.0).contains(&often), "{often}");
    assert!(
        (endless - often).abs() < 0.05,
        "smoothing takes back what later reports do not bear out: {endless}"
    );
}

/// As `docs/balancing.md` has it.
#[test]
fn rewards_saturate_where_answers_are_frequent() {
    let balancing = Balancing { score: Score { reward: 20, ..Score::default() }, ..Balancing::default() };
    let rule = Rule::new(&balancing);
    for (per_second, rewards) in [(1, 11.4), (2, 15.6), (10, 22.3), (20, 23.6)] {
        let slots = slots();
        slots.admit(&(0..N).map(|index| (index, 1000)).collect::<Vec<_>>(), &rule);
        for answer in 1..=60 * per_second {
            slots.report(0, requests(4), SECOND + answer * SECOND / per_second);
        }
        let contest = Contest::new(&slots, rule.terms(), &[], 61 * SECOND);
        let score = |index| contest.stand(index, 1000).score;
        let lead = (score(1) - score(0)) as f64 / f64::from(1 << crate::SCORE_BITS) / 0.2;
        assert!((lead - rewards).abs() < 0.3, "{per_second} a second: {lead} instead of {rewards}");
    }
}

#[test]
fn what_finished_no_request_earns_no_reward() {
    let balancing = Balancing { score: Score { reward: 50, ..Score::default() }, ..Balancing::default() };
    let (slots, rule) = (slots(), Rule::new(&balancing));
    slots.admit(&(0..N).map(|index| (index, 1000)).collect::<Vec<_>>(), &rule);
    for tenth in 1..=100 {
        slots.report(0, requests(4), tenth * SECOND / 10);
        slots.report_unearned(1, requests(4), tenth * SECOND / 10);
    }
    let contest = Contest::new(&slots, rule.terms(), &[], 10 * SECOND);
    let score = |index| contest.stand(index, 1000).score;
    assert_eq!(score(1), score(2), "it says what is usual, as one of which nothing is known");
    assert!(score(0) < score(1));
}

#[test]
fn a_new_endpoint_is_held_back_by_a_part_of_the_mean_and_by_no_more_than_it_takes() {
    let rule = rule();
    assert_eq!(rule.seed(0, 0), 0, "nothing is usual");
    assert_eq!(rule.seed(0, 2 << Load::BITS), 1 << Load::BITS, "half of the mean above it");
    assert_eq!(rule.seed(2 << Load::BITS, 0), 3 << Load::BITS, "and its own calls, of which it has none yet");
    assert_eq!(rule.seed(0, 50 << Load::BITS), 3 << (Load::BITS - 1), "1.5 requests, however many are usual");
    assert_eq!(rule.seed(10 << Load::BITS, 50 << Load::BITS), 23 << (Load::BITS - 1), "beside its own");
}
