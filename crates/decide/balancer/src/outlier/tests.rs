use fairmesh_model::Balancing;

use super::*;

const SECOND: u64 = 1_000_000_000;

fn config() -> BalancerConfig {
    BalancerConfig::new(&Balancing::default())
}

/// Records `responses` responses; every `nth` is a failure. The failure rates of 19 other endpoints add up to
/// `others`.
fn respond(outlier: &OutlierState, (responses, nth): (u32, u32), others: u64, now: u64) {
    for i in 0..responses {
        if i % nth != 0 {
            outlier.record_success(&config());
            continue;
        }
        outlier.record_failure(Outcome::Failed, now, &config());
        if let Some(rate) = outlier.failure_rate(&config()) {
            outlier.compare_failure_rate(rate, (others, 19), now, &config());
        }
    }
}

#[test]
fn outlier_ejection_by_failure_rate_needs_enough_samples() {
    let outlier = OutlierState::default();
    respond(&outlier, (config().min_samples - 1, 2), 0, 1);
    assert_eq!(outlier.ejected_until(false), 0);
}

#[test]
fn failure_rate_above_mean_ejects_with_backoff_and_ramps_up_again() {
    let outlier = OutlierState::default();
    respond(&outlier, (60, 2), 10_000, SECOND);
    let first = outlier.ejected_until(false) - SECOND;
    assert!(first >= SECOND, "{first}");
    assert!(
        !outlier.record_success(&config()) || outlier.ejected_until(false) > SECOND,
        "one good respond refutes no rate"
    );
    assert_eq!(outlier.ramp_remaining(SECOND), 256);
    let half = SECOND + first + first / 2;
    assert!((126..=130).contains(&outlier.ramp_remaining(half)), "{}", outlier.ramp_remaining(half));
    assert_eq!(outlier.ramp_remaining(SECOND + 2 * first), 0);
    respond(&outlier, (60, 2), 10_000, 100 * SECOND);
    assert!(outlier.ejected_until(false) - 100 * SECOND > first);
}

#[test]
fn equal_failure_rates_eject_no_endpoint() {
    let outlier = OutlierState::default();
    respond(&outlier, (400, 2), 19 << 15, 1);
    assert_eq!(outlier.ejected_until(false), 0);
}

#[test]
fn only_unreachable_endpoints_are_ejected_in_panic_mode() {
    let outlier = OutlierState::default();
    respond(&outlier, (3, 1), 0, 5);
    assert!(outlier.ejected_until(false) > 5 && outlier.ejected_until(true) == 0);
    outlier.record_failure(Outcome::Unreachable, 5, &config());
    assert!(outlier.ejected_until(true) > 5);
}

#[test]
fn further_failures_extend_ejection_without_changing_its_start() {
    let outlier = OutlierState::default();
    outlier.record_failure(Outcome::Unreachable, SECOND, &config());
    let (since, until) = outlier.ejection(SECOND).unwrap();
    assert_eq!(since, SECOND);
    outlier.record_failure(Outcome::Unreachable, until - 1, &config());
    let (still, longer) = outlier.ejection(until - 1).unwrap();
    assert_eq!((still, longer > until), (SECOND, true));
    assert_eq!(outlier.ejection(longer), None);
    outlier.record_failure(Outcome::Unreachable, longer + SECOND, &config());
    assert_eq!(outlier.ejection(longer + SECOND).map(|(since, _)| since), Some(longer + SECOND));
    outlier.record_success(&config());
    assert_eq!(outlier.ejection(longer + SECOND), None);
}
