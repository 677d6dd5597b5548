//! Authorization by a proxy on behalf of a service's servers.

use fairmesh_model::{Authorization, AuthorizationMode, AuthorizationRule, CallerMatch, SpiffeId};

use super::*;
use crate::{DecisionReason, RequestAttributes};

fn caller(path: &str) -> CallerId {
    CallerId::new(format!("spiffe://prod/{path}").parse::<SpiffeId>().unwrap())
}

fn rule(from: &str, methods: &[&str]) -> AuthorizationRule {
    let from = vec![CallerMatch::new(from).unwrap()];
    let methods = methods.iter().map(|method| (*method).to_owned()).collect();
    AuthorizationRule { methods, ..AuthorizationRule::allowing(Label::new("reads").unwrap(), from) }
}

fn permits(table: &ServiceTable, caller: &CallerId, method: &str, default: DefaultAuthorization) -> bool {
    let attributes = RequestAttributes::default();
    let request = AuthorizationRequest { caller: Some(caller), method, path: "/", attributes };
    table.authorize(&request, default).permits()
}

#[test]
fn authorization_rules_apply_and_survive_other_policy_changes() {
    use DefaultAuthorization::{Allow, Deny};
    let mut fleet = Fleet::replicated(&[("a", "eu")]);
    let (client, other) = (caller("shop/client"), caller("shop/other"));
    let open = fleet.compile(None);
    assert!(permits(&open, &other, "GET", Allow) && !permits(&open, &other, "GET", Deny));
    assert_eq!(open.authorize_connection(&other, Deny).reason, DecisionReason::Default);
    let rules = vec![rule("shop/client", &["GET"])];
    fleet.policy.authorization =
        Some(Box::new(Authorization { mode: AuthorizationMode::Enforce, rules, ..Authorization::default() }));
    let first = fleet.compile(None);
    fleet.endpoints.push(endpoint("b", "eu"));
    for table in [&first, &fleet.recompile(&first)] {
        assert!(permits(table, &client, "GET", Deny));
        assert!(!permits(table, &client, "PUT", Allow) && !permits(table, &other, "GET", Allow));
        assert!(!table.authorize_connection(&client, Allow).permits(), "the rule is for one method");
    }
    fleet.policy.authorization = None;
    assert!(permits(&fleet.compile(Some(&first)), &other, "GET", Allow));
}

#[test]
fn service_table_without_compiled_rules_allows_no_caller() {
    let fleet = Fleet { authorizes_callers: false, ..Fleet::replicated(&[("a", "eu")]) };
    let (table, client) = (fleet.compile(None), caller("shop/client"));
    assert!(!permits(&table, &client, "GET", DefaultAuthorization::Allow));
    assert!(!table.authorize_connection(&client, DefaultAuthorization::Allow).permits());
}

#[test]
fn caller_of_other_trust_domain_is_not_allowed_by_default() {
    let table = Fleet::replicated(&[("a", "eu")]).compile(None);
    let stranger = CallerId::federated("spiffe://other/shop/client".parse().unwrap());
    assert!(!permits(&table, &stranger, "GET", DefaultAuthorization::Allow));
}
