use fairmesh_model::Balancing;

use super::*;

const SECOND: u64 = 1_000_000_000;

fn rule() -> Rule {
    Rule::new(&Balancing::default())
}

/// Lets an endpoint fail every `nth` of `answers`, while 19 others have this sum of shares.
fn answer(trouble: &Trouble, (answers, nth): (u32, u32), others: u64, now: u64) {
    for i in 0..answers {
        if i % nth != 0 {
            trouble.answered(&rule());
            continue;
        }
        trouble.failed(Outcome::Failed, now, &rule());
        if let Some(share) = trouble.share(&rule()) {
            trouble.compare(share, (others, 19), now, &rule());
        }
    }
}

#[test]
fn a_handful_of_failures_is_no_share() {
    let trouble = Trouble::default();
    answer(&trouble, (rule().min_samples - 1, 2), 0, 1);
    assert_eq!(trouble.until(false), 0);
}

#[test]
fn a_share_far_above_the_others_is_avoided_for_longer_each_time_and_returns_by_and_by() {
    let trouble = Trouble::default();
    answer(&trouble, (60, 2), 10_000, SECOND);
    let first = trouble.until(false) - SECOND;
    assert!(first >= SECOND, "{first}");
    assert!(!trouble.answered(&rule()) || trouble.until(false) > SECOND, "one good answer refutes no share");
    assert_eq!(trouble.missing(SECOND), 256);
    let half = SECOND + first + first / 2;
    assert!((126..=130).contains(&trouble.missing(half)), "{}", trouble.missing(half));
    assert_eq!(trouble.missing(SECOND + 2 * first), 0);
    answer(&trouble, (60, 2), 10_000, 100 * SECOND);
    assert!(trouble.until(false) - 100 * SECOND > first);
}

#[test]
fn where_all_fail_alike_nobody_stands_out() {
    let trouble = Trouble::default();
    answer(&trouble, (400, 2), 19 << 15, 1);
    assert_eq!(trouble.until(false), 0);
}

#[test]
fn in_a_panic_only_what_cannot_be_reached_is_avoided() {
    let trouble = Trouble::default();
    answer(&trouble, (3, 1), 0, 5);
    assert!(trouble.until(false) > 5 && trouble.until(true) == 0);
    trouble.failed(Outcome::Unreachable, 5, &rule());
    assert!(trouble.until(true) > 5);
}
