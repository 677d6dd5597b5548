//! Policy defaults of the tenant and of the mesh.

use fairmesh_model::{DefaultsScope, PolicyDefaults, PolicyField, Retries, Timeouts};

use super::*;

fn attempts(attempts: u32) -> Policy {
    Policy { retries: Retries { attempts, ..Retries::default() }, ..Policy::default() }
}

fn timeout_of(seconds: u64) -> Policy {
    let total = Some(Duration::from_secs(seconds));
    Policy { timeouts: Timeouts { total, ..Timeouts::default() }, ..Policy::default() }
}

fn scope_of(tenant: &str) -> DefaultsScope {
    DefaultsScope::named(tenant).unwrap()
}

/// Returns the maximum number of attempts and the timeout in seconds of the published policy.
fn published(subscription: &Subscription<CountingTransport>) -> (u32, Option<u64>) {
    let state = subscription.state();
    let ServiceState::Ready(ready) = &*state else { panic!("{state:?}") };
    let policy = ready.upstream.policy();
    (policy.retries.attempts, policy.timeouts.total.map(|total| total.as_secs()))
}

impl Rig {
    /// Delivers the policy defaults of a tenant, or of the mesh.
    fn deliver_defaults(&mut self, tenant: &str, defaults: Option<Policy>) {
        let key = RecordKey::PolicyDefaults(scope_of(tenant));
        let record = defaults.map(|policy| entry(&key, PolicyDefaults::new(&policy).unwrap()));
        self.handle(Event::Update(update([(Prefix::from(&key), record.into_iter().collect())])));
    }

    fn deliver_policy(&mut self, policy: Policy) {
        let key = RecordKey::Policy(name());
        self.handle(Event::Update(update([(Prefix::from(&key), vec![entry(&key, policy)])])));
    }
}

#[tokio::test(start_paused = true)]
async fn policy_defaults_complete_published_policy_field_by_field() {
    let mut rig = rig();
    let subscription = rig.follow();
    rig.deliver();
    assert_eq!(published(&subscription), (3, None));
    rig.deliver_defaults("", Some(Policy { timeouts: timeout_of(9).timeouts, ..attempts(5) }));
    assert_eq!(published(&subscription), (5, Some(9)), "the service has no policy");
    rig.deliver_defaults("shop", Some(timeout_of(7)));
    assert_eq!(published(&subscription), (5, Some(7)), "the tenant's come first");
    rig.deliver_policy(attempts(3).restating([PolicyField::Attempts]));
    assert_eq!(published(&subscription), (3, Some(7)), "a restated built-in value is the service's own");
    rig.deliver_policy(attempts(3));
    rig.deliver_defaults("shop", None);
    assert_eq!(published(&subscription), (5, Some(9)));
    rig.deliver_defaults("", None);
    assert_eq!(published(&subscription), (3, None));
}

#[tokio::test(start_paused = true)]
async fn first_calls_wait_half_second_for_policy_defaults() {
    let mut rig = rig();
    let subscription = rig.follow();
    rig.deliver_without_defaults();
    assert!(matches!(*subscription.state(), ServiceState::Waiting));
    rig.deliver_defaults("", Some(attempts(5)));
    assert!(matches!(*subscription.state(), ServiceState::Waiting), "those of the tenant are outstanding");
    advance(CONNECT_PATIENCE).await;
    rig.worker.check().await;
    run_ready(rig.worker.settle());
    assert_eq!(published(&subscription), (5, None));
    rig.deliver_defaults("shop", Some(attempts(7)));
    assert_eq!(published(&subscription), (7, None), "they came late");
}

#[tokio::test(start_paused = true)]
async fn refused_policy_defaults_leave_built_in_values() {
    let mut rig = rig();
    let subscription = rig.follow();
    rig.deliver_without_defaults();
    for tenant in ["", "shop"] {
        let prefix = Prefix::from(&RecordKey::PolicyDefaults(scope_of(tenant)));
        rig.handle(Event::Refused(prefix, "there is nothing".into()));
    }
    assert_eq!(published(&subscription), (3, None));
}
