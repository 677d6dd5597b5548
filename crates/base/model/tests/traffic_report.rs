//! Sums of reports of calls and servers.

use std::time::Duration;

use fairmesh_model::{CallRates, MAX_REPORT_AGE, ServerRates};

#[test]
fn age_of_summed_report_is_mean_over_its_calls() {
    let calls = |offered, age_ms| {
        let mut rates = CallRates { offered, attempts: offered, ..CallRates::default() };
        rates.grow_older(Duration::from_millis(age_ms));
        rates
    };
    let mut sum = calls(3_000, 100);
    sum += calls(1_000, 3_100);
    assert_eq!(sum.age(), Duration::from_millis(850));
    sum.grow_older(Duration::from_millis(150));
    assert_eq!(sum.age(), Duration::from_secs(1));
    sum.grow_older(Duration::MAX);
    assert_eq!(sum.age(), MAX_REPORT_AGE);
    let mut none = CallRates::default();
    none.grow_older(Duration::from_secs(5));
    assert_eq!((none, none.age()), (CallRates::default(), Duration::ZERO), "no calls have no age");
}

#[test]
fn hanging_server_barely_raises_age_of_summed_report() {
    let mut sum = ServerRates { servers: 99, ..ServerRates::default() };
    let mut hanging = ServerRates { servers: 1, ..ServerRates::default() };
    hanging.grow_older(Duration::from_secs(20));
    sum += &hanging;
    assert_eq!(sum.age(), Duration::from_millis(200));
}

#[test]
fn servers_are_added_up_by_utilisation() {
    let at = |levels: &[usize]| {
        let mut rates = ServerRates { servers: levels.len() as u32, ..ServerRates::default() };
        levels.iter().for_each(|level| rates.by_utilisation[*level] += 1);
        rates
    };
    let mut sum = at(&[0, 15]);
    sum += &at(&[15, 19]);
    sum += &ServerRates { servers: 3, ..ServerRates::default() };
    assert_eq!((sum.servers, sum), (7, ServerRates { servers: 7, ..at(&[0, 15, 15, 19]) }));
}
