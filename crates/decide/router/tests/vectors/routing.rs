//! Routes, splits, consent to routes, and actions.

use super::*;

/// Host, path, method, the header `x-canary`, and whether the request is a gRPC call.
const REQUESTS: [(&str, &str, &str, &str, bool); 29] = [
    ("", "/cart/items", "GET", "", false),
    ("", "/cart/items?x=/cart", "POST", "", false),
    ("", "/cart/items/", "GET", "", false),
    ("", "/cart", "GET", "", false),
    ("", "/cartel", "GET", "", false),
    ("API.example.org:8080", "/cart/a", "GET", "", false),
    ("internal", "/cart/a", "GET", "", false),
    ("a.b.INTERNAL", "/cart/a", "GET", "", false),
    ("xinternal", "/cart/a", "GET", "", false),
    ("", "/", "GET", "yes, please", false),
    ("", "/", "GET", "no", false),
    ("", "*", "OPTIONS", "", false),
    ("", "/shop.v1.Cart/Add", "POST", "", true),
    ("", "/shop.v1.Cart/Remove", "POST", "", true),
    ("", "/shop.v1.Cart/Add", "POST", "", false),
    ("", "/cart/x", "PUT", "", false),
    ("", "/users/al/orders", "GET", "", false),
    ("", "/users//orders", "GET", "", false),
    ("", "/users/al/orders/", "GET", "", false),
    ("", "/users/12", "GET", "", false),
    ("", "/users/12/orders/x?page+no=1", "GET", "", false),
    ("", "/users/x12", "GET", "", false),
    ("", "/list?page+no=1%20of+2", "GET", "", false),
    ("", "/list?page%20no=1+of+2&page+no=3", "GET", "", false),
    ("", "/list?page+no=1+of+2&raw", "GET", "", false),
    ("", "/list?page+no=3&page+no=1+of+2", "GET", "", false),
    ("", "/me", "GET", "", false),
    ("", "/mine", "GET", "", false),
    ("", "/me", "GET", "no", false),
];

#[test]
fn route_matching_matches_vectors() {
    let policy = json!({"service": "shop/cart", "routes": [
        {"name": "exact", "match": {"path": {"exact": "/cart/items"}}},
        {"name": "host", "match": {"hosts": ["api.example.org", "*.internal"], "path": {"prefix": "/cart"}}},
        {"name": "canary", "match": {"headers": [{"name": "X-Canary", "prefix": "yes"}]},
            "split": [{"service": "shop/cart", "weight": 90}, {"service": "shop/cart-next", "weight": 10}]},
        {"name": "grpc", "match": {"grpc": {"service": "shop.v1.Cart", "method": "Add"}}},
        {"name": "grpc-any", "match": {"grpc": {"service": "shop.v1.Cart"}}},
        {"name": "write", "match": {"methods": ["POST", "PUT"], "path": {"prefix": "/cart"}},
            "split": [{"service": "shop/off", "weight": 0}, {"service": "shop/writer", "weight": 3}]},
        {"name": "cart", "match": {"path": {"prefix": "/cart/"}}},
        {"name": "orders", "match": {"path": {"template": "/users/{id}/orders"}}},
        {"name": "numbered", "match": {"path": {"regex": "/users/[0-9]+(/.*)?"}}},
        {"name": "paged", "match": {"query": [
            {"name": "page no", "exact": "1 of 2"}, {"name": "raw", "present": false}]}},
        {"name": "batch", "match": {"clients": ["batch-*", "web"], "path": {"prefix": "/mine"}}},
        {"name": "ours", "match": {"clients": ["*/web"], "path": {"prefix": "/mine"}}},
        {"name": "anonymous", "match": {
            "path": {"prefix": "/me"}, "headers": [{"name": "x-canary", "present": false}]}},
    ]});
    let fleet = Fleet::replicated(policy.clone(), endpoints(&[]));
    let table = fleet.compile();
    let cases = REQUESTS.into_iter().map(|(host, path, method, canary, grpc)| {
        let headers: Vec<(String, String)> = match canary {
            "" => Vec::new(),
            value => vec![("x-canary".into(), value.into())],
        };
        let request = RequestView { host, path, method, headers: &headers, grpc };
        let targets: Vec<_> = (0..8).map(|seed| json!(table.route(&request, seed).target)).collect();
        json!({
            "host": host, "path": path, "method": method, "headers": headers, "grpc": grpc,
            "route": table.route(&request, 0).route, "target_by_seed_0_to_7": targets,
        })
    });
    check(
        "routes.json",
        &[("client", vec![json!(CLIENT_ID)]), ("policy", vec![policy]), ("requests", cases.collect())],
    );
}

#[test]
fn traffic_splits_match_vectors() {
    let policy = json!({"service": "shop/cart", "routes": [
        {"name": "canary", "match": {"path": {"prefix": "/"}},
            "split": [{"service": "shop/cart", "weight": 60}, {"service": "shop/cart-next", "weight": 40}],
            "splitKey": [{"header": "x-user"}, {"cookie": "sid"}, {"query": "user"}]},
    ]});
    let table = Fleet::replicated(policy.clone(), endpoints(&[])).compile();
    let user = |name: &str| vec![("x-user".to_owned(), name.to_owned())];
    let cookie = vec![("cookie".to_owned(), "a=b; sid=ada".to_owned())];
    let both = [user("ben"), cookie.clone()].concat();
    let mut requests: Vec<_> = (0..8).map(|n| ("/", user(&n.to_string()))).collect();
    requests.extend([("/", cookie), ("/", both), ("/?user=7", Vec::new()), ("/", Vec::new())]);
    let cases = requests.into_iter().map(|(path, headers)| {
        let request = RequestView { host: "cart.shop", path, method: "GET", headers: &headers, grpc: false };
        let targets: Vec<_> = (0..16).map(|seed| json!(table.route(&request, seed).target)).collect();
        let has_key = !headers.is_empty() || path != "/";
        assert!(!has_key || targets.iter().all(|target| *target == targets[0]), "{path} {headers:?}");
        json!({"path": path, "headers": headers, "target_by_seed_0_to_15": targets})
    });
    check("splits.json", &[("policy", vec![policy]), ("requests", cases.collect())]);
}

#[test]
fn calls_to_empty_split_backends_match_vectors() {
    let policy = json!({"service": "shop/cart", "routes": [
        {"name": "canary", "match": {"path": {"prefix": "/"}},
            "split": [{"service": "shop/old", "weight": 60}, {"service": "shop/new", "weight": 30}, {"service": "shop/next", "weight": 10}],
            "splitKey": {"header": "x-user"}, "whenEmpty": "redistribute"},
    ]});
    let table = Fleet::replicated(policy.clone(), endpoints(&[])).compile();
    let sets: [&[&str]; 4] =
        [&[], &["shop/new"], &["shop/old", "shop/next"], &["shop/old", "shop/new", "shop/next"]];
    let keys = [None, Some("0"), Some("7")];
    let cases = sets.into_iter().flat_map(|empty| keys.map(|key| (empty, key))).map(|(empty, key)| {
        let headers: Vec<_> = key.map(|key| ("x-user".to_owned(), key.to_owned())).into_iter().collect();
        let request = RequestView { host: "cart.shop", path: "/", method: "GET", headers: &headers, grpc: false };
        let is_empty = |name: &fairmesh_model::ServiceName| empty.contains(&name.to_string().as_str());
        let to = |seed| json!(table.route_past_empty(&request, seed, is_empty).target);
        json!({"empty": empty, "headers": headers, "target_by_seed_0_to_15": (0..16).map(to).collect::<Vec<_>>()})
    });
    check("empty-backends.json", &[("policy", vec![policy]), ("cases", cases.collect())]);
}

#[test]
fn routes_between_tenants_match_vectors() {
    let sources: [&[&str]; 4] = [&[], &["red/api"], &["red/*"], &["green/*", "red/web"]];
    let cases = sources.into_iter().flat_map(|sources| {
        let policy = json!({"service": "shop/cart", "acceptRoutesFrom": sources});
        let table = Fleet::replicated(policy.clone(), endpoints(&[])).compile();
        ["shop/web", "red/api", "red/web", "green/x", "blue/x"].map(|from| {
            let accepted = table.accept_routes_from(&from.parse().unwrap()).is_ok();
            json!({"from": from, "policy": policy, "accepted": accepted})
        })
    });
    check("tenants.json", &[("cases", cases.collect())]);
}

#[test]
fn route_actions_match_vectors() {
    let policy = json!({"service": "shop/cart", "key": {"cookie": "sid"}, "routes": [
        {"name": "moved", "match": {"path": {"prefix": "/old"}},
            "redirect": {"path": {"prefix": "/new"}, "status": 308}},
        {"name": "secure", "match": {"path": {"exact": "/login"}}, "redirect": {"scheme": "https", "port": 8443}},
        {"name": "elsewhere", "match": {"path": {"exact": "/docs"}},
            "redirect": {"host": "docs.example.org", "path": {"full": "/"}}},
        {"name": "v1", "match": {"path": {"prefix": "/v1"}},
            "rewrite": {"host": "cart.internal", "path": {"prefix": "/"}}},
        {"name": "faulty", "match": {"path": {"prefix": "/faulty"}},
            "fault": {"abort": {"share": "25%", "status": 503}, "delay": {"share": "25%", "time": "20ms"}},
            "mirror": {"service": "shop/shadow", "share": "25%"}},
    ]});
    let table = Fleet::replicated(policy.clone(), endpoints(&[])).compile();
    let requests = [
        "/old",
        "/old/",
        "/old/a/b?c=/old",
        "/old//evil.example",
        "/login?next=/",
        "/docs?q=1",
        "/v1",
        "/v1/items?x",
        "/v1//a",
        "/faulty",
    ];
    let cases = requests.into_iter().map(|path| {
        let request = RequestView { host: "cart.shop:8080", path, method: "GET", headers: &(), grpc: false };
        let routed = table.route(&request, 0);
        let actions = routed.actions.unwrap();
        let responses = (0..16).map(|seed| actions.direct_response(&request, seed));
        let responses = responses.map(|response| match response {
            Some(DirectResponse::Redirect { status, location }) => json!([status, location]),
            Some(DirectResponse::Abort { status }) => json!(status),
            None => Value::Null,
        });
        let responses = responses.collect::<Vec<_>>();
        let delays: Vec<_> =
            (0..16).map(|seed| actions.delay(seed).map(|time| time.as_millis() as u64)).collect();
        let mirrors: Vec<_> = (0..16).map(|seed| actions.mirror(seed).map(ToString::to_string)).collect();
        json!({
            "path": path, "route": routed.route, "sent_path": actions.path(path), "sent_host": actions.host(),
            "instead_by_seed_0_to_15": responses, "delay_ms_by_seed_0_to_15": delays,
            "mirror_by_seed_0_to_15": mirrors,
        })
    });
    check("actions.json", &[("policy", vec![policy]), ("requests", cases.collect())]);
}
