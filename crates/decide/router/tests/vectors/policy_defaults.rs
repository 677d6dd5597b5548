//! Policies of services, completed by the defaults of their tenant and the mesh.

use fairmesh_model::{
    InheritedDefaults, PolicyDefaults,
    spec::{PolicyDefaultsSpec, PolicySpec},
};

use super::*;

/// Parses the defaults in a document; `None` if it is null.
fn defaults(document: &Value) -> Option<Arc<PolicyDefaults>> {
    let spec = (!document.is_null()).then(|| read::<PolicyDefaultsSpec>(document));
    spec.map(|spec| Arc::new(spec.validate().unwrap().1))
}

/// Computes the effective policy from a policy and the defaults of its tenant and the mesh, with the origin of each
/// field.
fn case([policy, tenant, mesh]: [Value; 3]) -> Value {
    let (name, own) = read::<PolicySpec>(&policy).validate().unwrap();
    let inherited = InheritedDefaults { tenant: defaults(&tenant), mesh: defaults(&mesh) };
    let (merged, origins) = inherited.merge(own);
    let origins =
        origins.into_iter().map(|(field, origin)| (field.path().to_owned(), json!(origin.as_str())));
    json!({
        "policy": policy, "tenant": tenant, "mesh": mesh,
        "inForce": PolicySpec::of(&name, &merged), "origins": origins.collect::<serde_json::Map<_, _>>(),
    })
}

#[test]
fn policy_defaults_match_vectors() {
    let policy = |fields: Value| {
        let mut policy = json!({"service": "shop/cart"});
        policy.as_object_mut().unwrap().extend(fields.as_object().cloned().unwrap());
        policy
    };
    let all = json!({
        "timeout": "15s", "responseHeaderTimeout": "5s", "idleTimeout": "1m",
        "retries": {"attempts": 2, "budgetPercent": 10, "budgetFloor": 1},
        "locality": {"rings": ["region", "any"]}, "traffic": {"planner": "optimizer", "mode": "shadow"},
    });
    let none = || policy(json!({}));
    let optimizer = json!({"traffic": {"planner": "optimizer"}});
    let shares = json!({"traffic": {"shares": [{"from": "eu", "to": {"eu": "100%"}}]}});
    let cases = [
        [none(), Value::Null, Value::Null],
        [none(), Value::Null, all.clone()],
        [none(), json!({"tenant": "shop", "timeout": "3s", "retries": {"attempts": 4}}), all.clone()],
        // Each field of the policy itself overrides a default, even with the built-in value.
        [policy(json!({"timeout": "1s", "retries": {"budgetFloor": 7}})), Value::Null, all.clone()],
        [
            policy(json!({
                "timeout": "none", "retries": {"attempts": 3, "budgetPercent": 20, "budgetFloor": 10},
                "locality": {"rings": ["5ms", "35ms", "80ms", "any"]}, "traffic": {"planner": "none"},
            })),
            Value::Null,
            all.clone(),
        ],
        // Fields of the tenant's defaults override the mesh's defaults in the same way.
        [none(), json!({"tenant": "shop", "timeout": "none", "traffic": {"planner": "none"}}), all],
        // A planner comes with its mode: defaults change neither if the service sets a planner.
        [policy(json!({"traffic": {"planner": "rings"}})), Value::Null, optimizer.clone()],
        [policy(shares), Value::Null, optimizer.clone()],
        // Fields without defaults are kept.
        [
            policy(json!({"locality": {"localOnly": true}, "balancing": {"subset": 3}})),
            Value::Null,
            optimizer,
        ],
    ];
    check("policies.json", &[("policies", cases.into_iter().map(case).collect())]);
}
