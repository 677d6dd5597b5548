//! The share of calls that may be retried.

#![allow(clippy::unwrap_used, reason = "what a test cannot do without has failed it")]

use fairmesh_calls::discovery::RetryBudget;
use fairmesh_model::Retries;

const SECOND: u64 = 1_000_000_000;

fn configured(budget_percent: u32, budget_floor: u32) -> RetryBudget {
    let budget = RetryBudget::default();
    budget.configure(&Retries { attempts: 3, budget_percent, budget_floor });
    budget
}

fn drain(budget: &RetryBudget, now: u64) -> u32 {
    (0..100_000).take_while(|_| budget.withdraw(now)).count().try_into().unwrap()
}

#[test]
fn retry_budget_limits_retries_to_share_of_calls() {
    let budget = configured(20, 0);
    assert_eq!(drain(&budget, SECOND), 0, "nothing was deposited");
    (0..100).for_each(|_| budget.deposit());
    assert_eq!(drain(&budget, SECOND), 20);
    (0..1_000_000).for_each(|_| budget.deposit());
    assert_eq!(drain(&budget, SECOND), 200, "deposits are bounded");
}

#[test]
fn minimum_retry_budget_refills_over_time() {
    let budget = configured(0, 2);
    assert_eq!(drain(&budget, SECOND), 20);
    assert_eq!(drain(&budget, SECOND), 0);
    assert_eq!(drain(&budget, SECOND + SECOND / 2), 1);
    assert_eq!(drain(&budget, 1000 * SECOND), 20);
}
