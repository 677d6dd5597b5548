//! Policy defaults by tenant and mesh, as operators write and see them.

use serde_json::{Value, json};

use super::support::{Mesh, fairmesh, wait_until};

const DEFAULTS: &str = "\
{kind: PolicyDefaults, timeout: 9s, retries: {attempts: 5}}
---
{kind: PolicyDefaults, tenant: shop, timeout: 7s, traffic: {planner: optimizer}}
";

/// Origin and value of a field in `explain`.
fn explained(mesh: &Mesh, service: &str, field: &str) -> Value {
    let explained = mesh.run(&["explain", service, "--region", "eu", "--json"]);
    let explained: Value = serde_json::from_str(&explained.out).unwrap();
    let fields = explained["policyFields"].as_array().unwrap();
    let field = fields.iter().find(|one| one["field"] == field).unwrap();
    json!([field["origin"], field["value"]])
}

/// Services that the planner plans.
fn planned(mesh: &Mesh) -> Vec<String> {
    let status = mesh.run(&["traffic", "status", "--json"]).json();
    status.as_array().unwrap().iter().map(|one| one["service"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn explain_shows_origin_of_each_policy_field() {
    let mesh = Mesh::with_shop();
    mesh.apply(DEFAULTS).ok();
    mesh.apply("{kind: Policy, service: shop/catalog, retries: {attempts: 3}}").ok();
    for (field, expected) in [
        ("timeout", json!(["tenant", "7s"])),
        ("retries.attempts", json!(["service", 3])),
        ("retries.budgetPercent", json!(["built-in", null])),
        ("traffic", json!(["tenant", {"planner": "optimizer"}])),
    ] {
        assert_eq!(explained(&mesh, "shop/catalog", field), expected, "{field}");
    }
    let text = mesh.run(&["explain", "shop/catalog", "--region", "eu"]).out;
    assert!(text.contains("default  timeout is 7s, by the defaults of the tenant shop"), "{text}");
    let described = mesh.run(&["describe", "shop/catalog"]).ok();
    assert!(described.contains("timeout, traffic of the tenant"), "{described}");
    assert!(described.contains("7s for the whole call"), "{described}");
    mesh.run(&["delete", "policy", "shop/catalog"]).ok();
    assert_eq!(explained(&mesh, "shop/catalog", "retries.attempts"), json!(["mesh", 5]));
    let deleted = mesh.run(&["delete", "policy-defaults", "shop"]).ok();
    assert!(deleted.contains("fairmesh audit --key /g/policy-defaults/shop"), "{deleted}");
    assert_eq!(explained(&mesh, "shop/catalog", "timeout"), json!(["mesh", "9s"]));
    mesh.run(&["delete", "policy-defaults"]).ok();
    assert_eq!(explained(&mesh, "shop/catalog", "timeout"), json!(["built-in", null]));
}

#[test]
fn default_planner_plans_all_services_without_own_planner_setting() {
    let mesh = Mesh::with_shop();
    mesh.apply(DEFAULTS).ok();
    let has = |service: &str| planned(&mesh).iter().any(|planned| planned == service);
    wait_until("services of the tenant are planned", || has("shop/catalog") && has("shop/cart"));
    mesh.apply("{kind: Policy, service: shop/cart, traffic: {planner: none}}").ok();
    wait_until("the exception is not planned", || !has("shop/cart") && has("shop/catalog"));
    let held = mesh.run(&["traffic", "hold", "shop/catalog", "--json"]).json();
    assert_eq!(held["changed"], true);
    let own = json!({"planner": "optimizer", "mode": "hold"});
    assert_eq!(explained(&mesh, "shop/catalog", "traffic"), json!(["service", own]));
    mesh.run(&["traffic", "resume", "shop/catalog"]).ok();
    assert_eq!(explained(&mesh, "shop/catalog", "traffic"), json!(["tenant", {"planner": "optimizer"}]));
    mesh.run(&["delete", "policy-defaults", "shop"]).ok();
    wait_until("nothing is planned", || planned(&mesh).is_empty());
}

#[test]
fn policy_defaults_round_trip_and_invalid_ones_are_refused() {
    let mesh = Mesh::start();
    mesh.apply(DEFAULTS).ok();
    let listed = mesh.run(&["get", "policy-defaults"]).ok();
    let rows: Vec<Vec<&str>> = listed.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[1][..3], ["(mesh)", "timeout,", "retries.attempts"], "{listed}");
    assert_eq!(rows[2][..3], ["shop", "timeout,", "traffic"], "{listed}");
    assert_eq!(mesh.run(&["get", "policy-defaults", "--tenant", "ads", "--json"]).json()[0]["timeout"], "9s");
    let yaml = mesh.run(&["get", "policy-defaults", "-o", "yaml"]).ok();
    assert_eq!(fairmesh(&mesh.address(), &["diff", "-f", "-"], &yaml).code, Some(0), "{yaml}");
    let other = yaml.replace("7s", "8s");
    let difference = fairmesh(&mesh.address(), &["diff", "-f", "-"], &other);
    assert_eq!(difference.code, Some(3), "{difference:?}");
    for (fields, problem) in [
        ("tenant: shop", "has no field"),
        ("routes: []", "there is no field 'routes'"),
        ("traffic: {shares: [{from: eu, to: {eu: 100%}}]}", "have no defaults"),
        ("traffic: {planner: rings, classes: [bulk]}", "have no defaults"),
        ("traffic: {planner: none, mode: shadow}", "beside 'planner: none'"),
        ("locality: {rings: [zone, any]}, traffic: {planner: rings}", "which has no default"),
        ("locality: {localOnly: true}", "has no default"),
        ("retries: {attempts: 11}", "out of range"),
        ("tenant: Shop, timeout: 1s", "tenant"),
    ] {
        let refused = mesh.apply(&format!("{{kind: PolicyDefaults, {fields}}}")).fails(2);
        assert!(refused.contains(problem), "{fields}: {refused}");
    }
}

#[test]
fn lint_checks_policies_completed_by_policy_defaults() {
    let files = "\
{kind: Service, name: shop/web}
---
{kind: Policy, service: shop/web, traffic: {planner: rings}}
---
{kind: PolicyDefaults, tenant: TENANT, locality: {rings: [region, any]}}
";
    for (tenant, code) in [("shop", 3), ("ads", 0)] {
        let run = fairmesh("", &["lint", "-f", "-"], &files.replace("TENANT", tenant));
        assert_eq!(
            (run.code, run.out.contains("the planner opens the rings")),
            (Some(code), code == 3),
            "{run:?}"
        );
    }
}
