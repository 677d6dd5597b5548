//! Compares authorization decisions with `vectors/`. The README there describes how to change the vectors.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use fairmesh_model::{
    CallerId,
    spec::{DefaultAuthorizationSpec, PolicySpec},
};
use fairmesh_router::{
    AuthorizationRequest, AuthorizationTable, ClaimValue, DecisionReason, RequestAttributes, UserToken,
};
use serde_json::{Value, json};

#[path = "../../../../vectors/support.rs"]
#[allow(dead_code, reason = "other vectors have numbers of 64 bits")]
mod support;

/// Returns a policy with this authorization.
fn policy(authorization: &Value) -> Value {
    match authorization {
        Value::Null => json!({"service": "shop/cart"}),
        authorization => json!({"service": "shop/cart", "authorization": authorization}),
    }
}

/// The attributes of a call that conditions compare: `{source, headers, claims}`, with headers as pairs, and the claims
/// of a verified token as JSON.
#[derive(Default)]
struct Brought {
    source: Option<std::net::IpAddr>,
    headers: Vec<(String, String)>,
    token: Option<UserToken>,
}

impl Brought {
    fn of(call: Option<&Value>) -> Self {
        let Some(call) = call else { return Self::default() };
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let headers = call["headers"].as_array().into_iter().flatten();
        let claims = call["claims"].as_object();
        Self {
            source: call["source"].as_str().map(|address| address.parse().unwrap()),
            headers: headers.map(|pair| (text(&pair[0]), text(&pair[1]))).collect(),
            token: claims.map(|claims| UserToken {
                issuer: "https://idp.example".into(),
                audiences: vec!["cart".into()],
                valid_for: Duration::from_secs(300),
                claims: object(claims),
            }),
        }
    }

    fn attributes(&self) -> RequestAttributes<'_> {
        RequestAttributes { source: self.source, token: self.token.as_ref(), headers: self }
    }
}

impl fairmesh_router::Headers for Brought {
    fn get(&self, name: &str) -> Option<&[u8]> {
        fairmesh_router::Headers::get(&self.headers, name)
    }

    fn any(&self, name: &str, matches: &mut dyn FnMut(&[u8]) -> bool) -> bool {
        self.headers.iter().filter(|(one, _)| one == name).any(|(_, value)| matches(value.as_bytes()))
    }
}

fn object(claims: &serde_json::Map<String, Value>) -> BTreeMap<String, ClaimValue> {
    let value = |value: &Value| match value {
        Value::Object(inner) => ClaimValue::Object(object(inner)),
        Value::Array(values) => {
            ClaimValue::Texts(values.iter().map(|value| value.as_str().unwrap().to_owned()).collect())
        }
        one => ClaimValue::Texts(vec![one.as_str().map_or_else(|| one.to_string(), ToOwned::to_owned)]),
    };
    claims.iter().map(|(name, one)| (name.clone(), value(one))).collect()
}

/// Returns two policies: one whose only rule allows under these conditions, and one whose rule denies under them.
fn conditional(when: &Value) -> [Value; 2] {
    let tokens = json!([{"issuer": "https://idp.example", "audiences": ["cart", "shop"]}]);
    let rule = |name: &str, action: &str| json!({"name": name, "action": action, "when": when});
    let rules = [json!([rule("members", "allow")]), json!([{"name": "all"}, rule("banned", "deny")])];
    rules.map(|rules| policy(&json!({"tokens": tokens, "rules": rules})))
}

/// Cases with conditions on claims, in rules that allow and rules that deny.
fn claims() -> Vec<Value> {
    let with = |claims: Value| json!([WEB, "GET", "/", {"claims": claims}]);
    let groups = json!([
        with(json!({"groups": ["staff", "members"]})),
        with(json!({"groups": "members"})),
        with(json!({"groups": ["team-7"]})),
        with(json!({"groups": ["member"]})),
        with(json!({"groups": []})),
        with(json!({"groups": {"members": true}})),
        with(json!({})),
        [WEB, "GET", "/"],
    ]);
    let [allowing, denying] = conditional(&json!([{"claim": "groups", "values": ["members", "team-*"]}]));
    let [allowing_others, denying_others] =
        conditional(&json!([{"claim": "groups", "notValues": ["members", "team-*"]}]));
    let [nested, _] = conditional(&json!([
        {"claim": ["realm_access", "roles"], "values": ["admin"]},
        {"claim": "level", "values": ["3"]},
    ]));
    let nested_calls = json!([
        with(json!({"realm_access": {"roles": ["admin"]}, "level": 3})),
        with(json!({"realm_access": {"roles": ["admin"]}, "level": 4})),
        with(json!({"realm_access": {"roles": ["admin"]}})),
        with(json!({"realm_access": "admin", "roles": ["admin"], "level": 3})),
    ]);
    vec![
        case("allow", &allowing, &groups),
        case("allow", &allowing_others, &groups),
        case("deny", &denying, &groups),
        case("deny", &denying_others, &groups),
        case("allow", &nested, &nested_calls),
    ]
}

/// Cases with conditions on headers and source addresses, in rules that allow and rules that deny.
fn headers_and_sources() -> Vec<Value> {
    let sent = |lines: &[&str]| {
        let lines: Vec<_> = lines.iter().map(|line| json!(["x-env", line])).collect();
        json!([WEB, "GET", "/", {"headers": lines}])
    };
    let lines = json!([
        sent(&["prod"]),
        sent(&["test"]),
        sent(&["prod", "test"]),
        sent(&["test", "prod"]),
        sent(&[])
    ]);
    let [allowing, denying] = conditional(&json!([{"header": "x-env", "values": ["prod"]}]));
    let [allowing_others, denying_others] = conditional(&json!([{"header": "x-env", "notValues": ["prod"]}]));
    let from = |address: Value| json!([WEB, "GET", "/", {"source": address}]);
    let addresses = ["10.1.2.3", "::ffff:10.1.2.3", "11.0.0.1", "::1"].map(|address| from(json!(address)));
    let sources: Value = addresses.into_iter().chain([from(Value::Null)]).collect();
    let blocks = json!(["10.0.0.0/8", "::1"]);
    let inside = policy(&json!({"rules": [{"name": "inside", "sourceAddresses": blocks}]}));
    let outside = policy(&json!({"rules": [
        {"name": "all"}, {"name": "inside", "action": "deny", "sourceAddresses": blocks},
    ]}));
    vec![
        case("allow", &allowing, &lines),
        case("allow", &allowing_others, &lines),
        case("deny", &denying, &lines),
        case("deny", &denying_others, &lines),
        case("allow", &inside, &sources),
        case("deny", &outside, &sources),
    ]
}

/// The calls of a policy, as `[caller, method, path]` and the attributes that conditions compare, with the decisions.
fn case(default: &str, policy: &Value, calls: &Value) -> Value {
    let spec: PolicySpec = serde_json::from_value(policy.clone()).unwrap();
    let default_spec = DefaultAuthorizationSpec { default: default.into() };
    let table = AuthorizationTable::compile(
        &spec.validate().unwrap().1,
        default_spec.validate().unwrap(),
        Some(CHECKERS.map(|name| name.parse().unwrap()).into()),
    );
    let decide = |call: &Value| {
        let caller = call[0].as_str().map(|id| CallerId::new(id.parse().unwrap()));
        let brought = Brought::of(call.get(3));
        let request = AuthorizationRequest {
            caller: caller.as_ref(),
            method: call[1].as_str().unwrap(),
            path: call[2].as_str().unwrap(),
            attributes: brought.attributes(),
        };
        let decision = table.decide(&request);
        let by = match decision.reason {
            DecisionReason::Rule(name) => json!({"rule": name.to_string()}),
            DecisionReason::NoRule => json!("noRule"),
            DecisionReason::HealthCheck => json!("healthCheck"),
            DecisionReason::OtherDomain => json!("otherDomain"),
            DecisionReason::Default => json!("default"),
        };
        let connection = table.decide_connection(caller.as_ref());
        let is_local = table.decide_local(caller.as_ref()).is_ok();
        assert!(
            !is_local || decision.is_allowed,
            "the kernel would send what is refused: {call} by {policy}"
        );
        json!({
            "call": call, "allowed": decision.is_allowed, "permitted": decision.permits(), "by": by,
            "connectionPermitted": connection.permits(),
        })
    };
    let decisions: Vec<Value> = calls.as_array().unwrap().iter().map(decide).collect();
    json!({"default": default, "policy": policy, "decisions": decisions})
}

const WEB: &str = "spiffe://prod/shop/web";
const BATCH: &str = "spiffe://prod/shop/batch";
const BANK: &str = "spiffe://prod/bank/web";
const AGENT: &str = "spiffe://prod/fairmesh/agent/web-1";
/// Names of agents that are elected checkers.
const CHECKERS: [&str; 2] = ["web-1", "web-2"];
const OTHER_AGENT: &str = "spiffe://prod/fairmesh/agent/red-1";

fn rules() -> Vec<Value> {
    let frontends = policy(&json!({"rules": [
        {"name": "web", "from": ["shop/web"], "methods": ["GET", "HEAD"], "paths": [{"prefix": "/v1"}, {"exact": "/info"}]},
        {"name": "batch", "from": ["spiffe://prod/shop/batch"]},
    ]}));
    let calls = json!([
        [WEB, "GET", "/v1"],
        [WEB, "GET", "/v1/carts?x=/../admin"],
        [WEB, "GET", "/info"],
        [WEB, "POST", "/v1/carts"],
        [WEB, "GET", "/v10"],
        [WEB, "GET", "/info/x"],
        [WEB, "GET", "/v2"],
        [BATCH, "DELETE", "/v2"],
        [BANK, "GET", "/v1"],
        [null, "GET", "/v1"],
    ]);
    let denied = policy(&json!({"rules": [
        {"name": "all", "from": ["*"]},
        {"name": "not-admin", "action": "deny", "from": ["shop/*"], "paths": [{"prefix": "/admin"}]},
    ]}));
    let denied_calls = json!([
        [WEB, "GET", "/"],
        [WEB, "GET", "/admin"],
        [WEB, "GET", "/admin/x"],
        [BANK, "GET", "/admin"],
        [null, "GET", "/"],
        [WEB, "GET", "/x/../admin"],
    ]);
    let methods = policy(&json!({"rules": [
        {"name": "reads", "methods": ["GET"]},
        {"name": "bank", "from": ["bank/*"]},
        {"name": "no-deletes", "action": "deny", "methods": ["DELETE"]},
    ]}));
    let methods_called = json!([
        [WEB, "GET", "/"],
        [WEB, "get", "/"],
        [BANK, "PATCH", "/"],
        [BANK, "DELETE", "/"],
        [BANK, "delete", "/"],
        [BANK, "Delete", "/"],
    ]);
    let only_denied = policy(&json!({"rules": [{"name": "no-bank", "action": "deny", "from": ["bank/*"]}]}));
    let two = json!([[WEB, "GET", "/"], [BANK, "GET", "/"]]);
    let anyone = policy(&json!({"rules": [{"name": "anyone", "paths": [{"prefix": "/"}]}]}));
    let audit = policy(&json!({"mode": "audit", "rules": [{"name": "web", "from": ["shop/web"]}]}));
    vec![
        case("allow", &frontends, &calls),
        case("allow", &denied, &denied_calls),
        case("allow", &methods, &methods_called),
        case("allow", &only_denied, &two),
        case("deny", &only_denied, &two),
        case("deny", &anyone, &json!([[null, "GET", "/a"], [WEB, "GET", "/a"]])),
        case("deny", &audit, &two),
        case("allow", &policy(&json!({})), &two),
    ]
}

fn defaults() -> Vec<Value> {
    let mut probed = policy(&Value::Null);
    probed["healthCheck"] = json!({"http": {"path": "/healthz"}});
    let calls = json!([
        [WEB, "GET", "/healthz"],
        [AGENT, "GET", "/healthz"],
        [AGENT, "GET", "/"],
        [AGENT, "POST", "/healthz"],
        [AGENT, "GET", "/healthz?delete=all"],
        [OTHER_AGENT, "GET", "/healthz"],
        [null, "GET", "/"]
    ]);
    let mut cases = ["allow", "audit", "deny"].map(|default| case(default, &probed, &calls)).to_vec();
    probed["healthCheck"] = json!({"http": {"path": "/healthz?quick=1"}});
    cases.push(case(
        "deny",
        &probed,
        &json!([[AGENT, "GET", "/healthz?quick=1"], [AGENT, "GET", "/healthz"]]),
    ));
    probed["healthCheck"] = json!({"grpc": {}});
    let health = "/grpc.health.v1.Health/Check";
    cases.push(case(
        "deny",
        &probed,
        &json!([
            [AGENT, "POST", health],
            [AGENT, "GET", health],
            [OTHER_AGENT, "POST", health],
            [WEB, "POST", health]
        ]),
    ));
    probed["healthCheck"] = json!({"tcp": {}});
    cases.push(case("deny", &probed, &json!([[AGENT, "GET", "/"]])));
    // A rule denies agents; only their health check is still let through.
    probed =
        policy(&json!({"rules": [{"name": "no-agents", "action": "deny", "from": ["fairmesh/agent/*"]}]}));
    probed["healthCheck"] = json!({"http": {"path": "/healthz"}});
    cases.push(case(
        "allow",
        &probed,
        &json!([[AGENT, "GET", "/healthz"], [AGENT, "POST", "/v1/delete-all"]]),
    ));
    cases
}

/// Paths that servers may interpret differently: no rule allows them, and every denial covers them.
fn paths() -> Vec<Value> {
    let spellings = [
        "/v1/a",
        "/v1/a/",
        "/v1",
        "/v1//a",
        "/v1/./a",
        "/v1/../admin",
        "/v1/%2e%2e/admin",
        "/v1/..%2fadmin",
        "/v1\\..\\admin",
        "/v1/a;x=1",
        "/v1/%61",
        "/v1/%C3%A9",
        "/v1/%20",
        "/v1/%",
        "/v1/%zz",
        "//v1/a",
        "/",
        "*",
    ];
    let calls: Value = spellings.iter().map(|path| json!([WEB, "GET", path])).collect();
    let allowed = policy(&json!({"rules": [{"name": "v1", "paths": [{"prefix": "/v1"}]}]}));
    let denied = policy(&json!({"rules": [
        {"name": "all"}, {"name": "not-v1", "action": "deny", "paths": [{"prefix": "/v1"}]},
    ]}));
    let secret = policy(&json!({"rules": [
        {"name": "all"}, {"name": "no-secret", "action": "deny", "paths": [{"exact": "/v1/secret"}]},
    ]}));
    let only_secret = policy(&json!({"rules": [{"name": "secret", "paths": [{"exact": "/v1/secret"}]}]}));
    let spellings = [
        "/v1/secret",
        "/v1/secret/",
        "/V1/Secret",
        "/v1/secret%3f",
        "/v1/secret%3Fa=1",
        "/v1/secret/%23",
        "/v1/secret?a=1",
        "/v1/secrets",
        "/v1/secret/x",
        "/v1/secret%20",
        "/v1%3f/secret",
        "/v1",
    ];
    let spelled: Value = spellings.iter().map(|path| json!([WEB, "GET", path])).collect();
    vec![
        case("deny", &allowed, &calls),
        case("allow", &denied, &calls),
        case("allow", &secret, &spelled),
        case("deny", &only_secret, &spelled),
    ]
}

#[test]
fn authorization_decisions_match_vectors() {
    let cases = [
        ("rules", rules()),
        ("defaults", defaults()),
        ("paths", paths()),
        ("claims", claims()),
        ("headersAndSources", headers_and_sources()),
    ];
    support::check("authorization.json", &cases);
}

/// By policy and caller: whether the kernel may send calls within a machine, and whether the server accepts one. The kernel's are
/// always among those that the server accepts, also in [`case`].
#[test]
fn kernel_may_send_local_calls_only_if_every_request_of_caller_is_allowed() {
    let web = json!({"name": "web", "from": ["shop/web"]});
    let denies = |to: Value| json!({"name": "no", "action": "deny", "from": to});
    let all = [(WEB, true, true), (BATCH, true, true)];
    let only_web = [(WEB, true, true), (BATCH, false, false)];
    let none = [(WEB, false, true), (BATCH, false, true)];
    let tokens = json!([{"issuer": "https://idp.example", "audiences": ["cart"]}]);
    for (default, authorization, transport, expected) in [
        ("allow", Value::Null, "kernel", all),
        ("allow", Value::Null, "sidecar", none),
        ("audit", Value::Null, "kernel", none),
        ("deny", Value::Null, "kernel", [(WEB, false, false), (BATCH, false, false)]),
        ("deny", json!({"rules": [web]}), "kernel", only_web),
        (
            "deny",
            json!({"rules": [web], "mode": "audit"}),
            "kernel",
            [(WEB, true, true), (BATCH, false, true)],
        ),
        (
            "allow",
            json!({"rules": [web, denies(json!(["shop/*"]))]}),
            "kernel",
            [(WEB, false, false), (BATCH, false, false)],
        ),
        ("allow", json!({"rules": [denies(json!(["shop/batch"]))]}), "kernel", only_web),
        ("allow", json!({"rules": [{"name": "reads", "methods": ["GET"]}]}), "kernel", none),
        ("allow", json!({"rules": [{"name": "v1", "paths": [{"prefix": "/"}]}]}), "kernel", none),
        (
            "allow",
            json!({"rules": [{"name": "here", "sourceAddresses": ["127.0.0.0/8"]}]}),
            "kernel",
            [(WEB, false, false), (BATCH, false, false)],
        ),
        (
            "allow",
            json!({"rules": [{"name": "all"}, {"name": "no", "action": "deny", "methods": ["PUT"]}]}),
            "kernel",
            none,
        ),
        (
            "allow",
            json!({"rules": [web], "tokens": tokens}),
            "kernel",
            [(WEB, false, true), (BATCH, false, false)],
        ),
    ] {
        let mut spec = policy(&authorization);
        spec["localTransport"] = json!(transport);
        let spec: PolicySpec = serde_json::from_value(spec).unwrap();
        let default_spec = DefaultAuthorizationSpec { default: default.into() };
        let table = AuthorizationTable::compile(
            &spec.validate().unwrap().1,
            default_spec.validate().unwrap(),
            Some(BTreeSet::new()),
        );
        for (id, by_kernel, accepted) in expected {
            let caller = CallerId::new(id.parse().unwrap());
            let attributes = RequestAttributes::default();
            let request =
                AuthorizationRequest { caller: Some(&caller), method: "GET", path: "/", attributes };
            let found = (table.decide_local(Some(&caller)).is_ok(), table.decide(&request).permits());
            assert_eq!(found, (by_kernel, accepted), "{id}, {default}, {authorization}, {transport}");
        }
        assert!(table.decide_local(None).is_err(), "a caller without an identity");
    }
}

/// Neither the default, nor audit mode, nor a rule for members admits a caller from another trust domain.
#[test]
fn federated_caller_is_allowed_only_by_rules_with_its_complete_id() {
    const PARTNER: &str = "spiffe://partner/shop/web";
    let caller = CallerId::federated(PARTNER.parse().unwrap());
    let decided = |default: &str, authorization: Option<Value>| {
        let spec = authorization.map_or_else(|| json!({"service": "shop/cart"}), |it| policy(&it));
        let spec: PolicySpec = serde_json::from_value(spec).unwrap();
        let default_spec = DefaultAuthorizationSpec { default: default.into() };
        let default = default_spec.validate().unwrap();
        let table = AuthorizationTable::compile(&spec.validate().unwrap().1, default, Some(BTreeSet::new()));
        let attributes = RequestAttributes::default();
        let request = AuthorizationRequest { caller: Some(&caller), method: "GET", path: "/", attributes };
        assert!(!table.is_intermediary(&caller));
        (table.decide(&request).permits(), table.decide_connection(Some(&caller)).permits())
    };
    let from = |mode: &str, from: &[&str]| {
        Some(json!({"mode": mode, "rules": [{"name": "callers", "from": from}], "intermediaries": [PARTNER]}))
    };
    for default in ["allow", "audit", "deny"] {
        assert_eq!(decided(default, None), (false, false), "{default}");
        let denies = json!({"rules": [{"name": "no", "action": "deny", "from": ["bank/*"]}]});
        assert_eq!(decided(default, Some(denies)), (false, false), "{default}");
        assert_eq!(decided(default, from("enforce", &[PARTNER])), (true, true), "{default}");
        for others in ["*", "spiffe://partner/*"] {
            let denied = json!({"rules": [
                {"name": "no", "action": "deny", "from": [others], "paths": [{"prefix": "/"}]},
                {"name": "callers", "from": [PARTNER]},
            ]});
            assert!(!decided(default, Some(denied)).0, "{default} {others}");
        }
        for mode in ["enforce", "audit"] {
            for others in [&["shop/web"][..], &["shop/*"], &["spiffe://partner/*"], &["*"], &[]] {
                assert_eq!(
                    decided(default, from(mode, others)),
                    (false, false),
                    "{default} {mode} {others:?}"
                );
            }
        }
    }
}
