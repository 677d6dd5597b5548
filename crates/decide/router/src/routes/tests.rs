mod oracle;

use fairmesh_model::{
    Backend, ClientMatch, GrpcMatch, HeaderMatch, HostMatch, KeySource, Label, Match, PathMatch, Pattern,
    QueryMatch, Template, TextMatch,
};
use proptest::{collection::vec, option, prelude::*, sample::select};

use super::*;
use oracle::{Pairs, fits};

fn path() -> impl Strategy<Value = String> {
    // Few distinct segments, so that paths often match; sometimes with a double or trailing slash.
    vec(select(vec!["a", "b", "ab", "v1", ""]), 0..5).prop_map(|parts| format!("/{}", parts.join("/")))
}

fn host() -> impl Strategy<Value = String> {
    vec(select(vec!["a", "b", "shop", "org"]), 1..4).prop_map(|labels| labels.join("."))
}

fn a_match() -> impl Strategy<Value = Match> {
    let host = (host(), any::<bool>()).prop_map(|(host, exact)| {
        if exact { HostMatch::Exact(host) } else { HostMatch::Suffix(format!(".{host}")) }
    });
    let template = (vec(select(vec!["a", "b", "{x}"]), 0..3), vec(select(vec!["a", "{y}"]), 0..2))
        .prop_map(|(before, after)| [before, vec!["{z}"], after].concat().join("/"))
        .prop_map(|text| PathMatch::Template(Template::new(&format!("/{text}")).unwrap()));
    // Patterns are compiled only once, since compilation takes longer than the rest of the test.
    let patterns = ["/.*/a", "/.*/v1"].map(|text| PathMatch::Regex(Pattern::new(text).unwrap()));
    let regex = select(patterns.to_vec());
    let path = prop_oneof![
        2 => path().prop_map(PathMatch::Exact),
        2 => path().prop_map(|path| PathMatch::Prefix(path.trim_end_matches('/').to_owned())),
        1 => template,
        1 => regex,
    ];
    let expression = TextMatch::Regex(Pattern::new("x?y*").unwrap());
    let value = || {
        let expression = expression.clone();
        select(vec!["", "x", "xy"]).prop_flat_map(move |text| {
            let texts = [TextMatch::Exact(text.into()), TextMatch::Prefix(text.into()), expression.clone()];
            select([vec![TextMatch::Present, TextMatch::Absent], texts.to_vec()].concat())
        })
    };
    let header = (select(vec!["h1", "h2", "host"]), value())
        .prop_map(|(name, value)| HeaderMatch { name: name.into(), value });
    let query =
        (select(vec!["x", "y"]), value()).prop_map(|(name, value)| QueryMatch { name: name.into(), value });
    let grpc = (select(vec!["a", "b", "ab"]), option::of(select(vec!["a", "b"])))
        .prop_map(|(service, method)| GrpcMatch { service: service.into(), method: method.map(Into::into) });
    let methods = vec(select(vec!["GET", "POST", "PUT"]).prop_map(str::to_owned), 0..2);
    let grpc = option::weighted(0.2, grpc);
    let clients = [vec![], vec!["web-*"], vec!["batch-*"]];
    let clients = select(
        clients.map(|texts| texts.into_iter().map(|text| ClientMatch::new(text).unwrap()).collect()).to_vec(),
    );
    ((clients, vec(host, 0..2)), option::of(path), methods, vec(header, 0..2), vec(query, 0..2), grpc)
        .prop_map(|((clients, hosts), path, methods, headers, query, grpc)| Match {
            clients,
            hosts,
            path,
            methods,
            headers,
            query,
            grpc,
        })
}

fn route(name: usize, matches: Match, split: Vec<Backend>) -> Route {
    let name = Label::new(format!("r{name}")).unwrap();
    Route { matches, split, ..Route::new(name) }
}

fn routes(matches: Vec<Match>) -> Vec<Route> {
    matches.into_iter().enumerate().map(|(i, matches)| route(i, matches, Vec::new())).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn compiled_routes_match_like_reference_matcher(
        matches in vec(a_match(), 0..90),
        host in host(), port in select(vec!["", ":80", ".", ".:80"]), shout: bool,
        path in path(), query in select(vec!["", "?", "?x=/a/b", "?x=x&y", "?y=xy&x="]),
        method in select(vec!["GET", "POST", "DELETE"]),
        headers in vec((select(vec!["h1", "h2", "host"]), select(vec!["", "x", "xyz"])), 0..3),
        grpc: bool,
    ) {
        let host = if shout { host.to_uppercase() } else { host };
        let headers: Pairs = headers.into_iter().map(|(n, v)| (n.into(), v.into())).collect();
        let request = RequestView {
            host: &format!("{host}{port}"), path: &format!("{path}{query}"), method, headers: &headers, grpc,
        };
        let expected = matches.iter().position(|wanted| fits(wanted, &request));
        let routes = Routes::compile(&routes(matches), "web-1", None);
        prop_assert_eq!(routes.find(&request).map(|(i, _)| i), expected);
    }
}

fn first(matches: Vec<Match>, host: &str, path: &str) -> Option<usize> {
    let request = RequestView { host, path, method: "GET", headers: &(), grpc: false };
    Routes::compile(&routes(matches), "web-1", None).find(&request).map(|(i, _)| i)
}

#[test]
fn route_path_prefix_matches_only_whole_segments() {
    let below =
        |prefix: &str| vec![Match { path: Some(PathMatch::Prefix(prefix.into())), ..Match::default() }];
    assert_eq!(first(below("/a"), "", "/a"), Some(0));
    assert_eq!(first(below("/a"), "", "/a/b?x"), Some(0));
    assert_eq!(first(below("/a"), "", "/ab"), None);
    assert_eq!(first(below(""), "", "/"), Some(0));
    assert_eq!(first(below(""), "", "*"), None, "OPTIONS * has no path");
}

#[test]
fn route_host_comparison_ignores_case_port_and_trailing_dot() {
    let host = |host| vec![Match { hosts: vec![host], ..Match::default() }];
    for same in ["a.org.", "A.Org.:80", "a.org:", "a.org.:"] {
        assert_eq!(first(host(HostMatch::Exact("a.org".into())), same, "/"), Some(0), "{same}");
        assert_eq!(first(host(HostMatch::Suffix(".org".into())), same, "/"), Some(0), "{same}");
    }
    assert_eq!(first(host(HostMatch::Exact("a.org".into())), "A.Org:8080", "/"), Some(0));
    assert_eq!(first(host(HostMatch::Exact("[::1]".into())), "[::1]:80", "/"), Some(0));
    assert_eq!(first(host(HostMatch::Exact("[::1]".into())), "[::1]", "/"), Some(0));
    assert_eq!(first(host(HostMatch::Suffix(".a.org".into())), "x.y.A.org", "/"), Some(0));
    assert_eq!(first(host(HostMatch::Suffix(".a.org".into())), "a.org", "/"), None);
    assert_eq!(first(host(HostMatch::Suffix(".a.org".into())), "ba.org", "/"), None);
}

#[test]
fn route_condition_on_host_header_uses_request_authority() {
    let with = |value| HeaderMatch { name: "host".into(), value };
    let matches = |value| vec![Match { headers: vec![with(value)], ..Match::default() }];
    let headers = vec![("host".to_owned(), "other.org".to_owned())];
    let find = |matches: Vec<Match>, host| {
        let request = RequestView { host, path: "/", method: "GET", headers: &headers, grpc: false };
        Routes::compile(&routes(matches), "", None).find(&request).is_some()
    };
    assert!(find(matches(TextMatch::Exact("a.org:80".into())), "a.org:80"));
    assert!(!find(matches(TextMatch::Exact("other.org".into())), "a.org:80"));
    assert!(find(matches(TextMatch::Absent), ""));
}

#[test]
fn route_header_regex_must_match_whole_value() {
    let with = |name: &str, value: &str| {
        let value = TextMatch::Regex(Pattern::new(value).unwrap());
        vec![Match { headers: vec![HeaderMatch { name: name.into(), value }], ..Match::default() }]
    };
    let headers = vec![("x-version".to_owned(), "v12".to_owned())];
    let find = |matches: Vec<Match>| {
        let request = RequestView { host: "a.org", path: "/", method: "GET", headers: &headers, grpc: false };
        Routes::compile(&routes(matches), "", None).find(&request).is_some()
    };
    assert!(find(with("x-version", "v[0-9]+")) && find(with("host", r"a\.(org|com)")));
    assert!(!find(with("x-version", "v[0-9]")), "it goes on after the expression");
    assert!(!find(with("x-other", ".*")), "an absent header has no value");
}

#[test]
fn route_query_regex_is_matched_against_decoded_value() {
    let value = TextMatch::Regex(Pattern::new("a b+").unwrap());
    let matches = vec![Match { query: vec![QueryMatch { name: "q".into(), value }], ..Match::default() }];
    let find = |path| {
        let request = RequestView { host: "", path, method: "GET", headers: &(), grpc: false };
        Routes::compile(&routes(matches.clone()), "", None).find(&request).is_some()
    };
    assert!(find("/?q=a+%62b") && !find("/?q=a%2Bb") && !find("/"));
}

#[test]
fn compiled_routes_report_hosts_and_methods_they_name() {
    let hosts = vec![HostMatch::Exact("a.org".into()), HostMatch::Suffix(".b.org".into())];
    let named = |clients: &[&str], methods: &[&str]| Match {
        clients: clients.iter().map(|text| ClientMatch::new(*text).unwrap()).collect(),
        methods: methods.iter().map(ToString::to_string).collect(),
        hosts: hosts.clone(),
        ..Match::default()
    };
    let ours = Routes::compile(&routes(vec![Match::default(), named(&[], &["GET", "CONNECT"])]), "web", None);
    for (host, is_named) in [("A.org", true), ("x.b.org", true), ("b.org", false), ("c.org", false)] {
        assert_eq!(ours.names_host(host), is_named, "{host}");
    }
    assert_eq!(ours.rules.iter().map(Rule::names_connect).collect::<Vec<_>>(), [false, true]);
    let of_others = Routes::compile(&routes(vec![named(&["batch"], &[])]), "web", None);
    assert!(!of_others.names_host("a.org"), "rules for other clients do not count");
}

#[test]
fn traffic_split_divides_calls_by_weight_and_skips_weight_0() {
    let backend = |name, weight| Backend { service: ServiceName::new(name).unwrap(), weight };
    let split =
        vec![backend("shop/off", 0), backend("shop/old", 90), backend("shop/no", 0), backend("shop/new", 10)];
    let rule = Rule::new(&route(0, Match::default(), split), "", None);
    let own = ServiceName::new("shop/own").unwrap();
    let mut counts = std::collections::BTreeMap::new();
    let anything =
        RequestView::<[(String, String)]> { host: "", path: "/", method: "GET", headers: &[], grpc: false };
    for seed in 0..100_000 {
        let (backend, path) = rule.backend(&anything, seed, &own);
        assert_eq!(rule.split[path as usize - 1].service, *backend);
        *counts.entry(backend.service.to_string()).or_insert(0_u32) += 1;
    }
    assert_eq!(counts.len(), 2);
    assert!((9_500..10_500).contains(&counts["new"]), "{counts:?}");
}

#[test]
fn traffic_split_redistributes_only_calls_of_empty_backend() {
    let backend = |name, weight| Backend { service: ServiceName::new(name).unwrap(), weight };
    let split = vec![backend("shop/old", 60), backend("shop/new", 30), backend("shop/next", 10)];
    let mut redistributing = route(0, Match::default(), split);
    redistributing.actions.redistributes_empty = true;
    let rule = Rule::new(&redistributing, "", None);
    redistributing.actions.redistributes_empty = false;
    let failing = Rule::new(&redistributing, "", None);
    let own = ServiceName::new("shop/own").unwrap();
    let request =
        RequestView::<[(String, String)]> { host: "", path: "/", method: "GET", headers: &[], grpc: false };
    let is_empty = |name: &ServiceName| name.service.as_str() == "old";
    let mut counts = std::collections::BTreeMap::new();
    for seed in 0..100_000 {
        let (drawn, _) = rule.backend(&request, seed, &own);
        assert!(failing.redistributed(&request, seed, drawn, is_empty).is_none());
        assert!(rule.redistributed(&request, seed, drawn, |_| true).is_none(), "all are empty");
        match rule.redistributed(&request, seed, drawn, is_empty) {
            None => assert!(!is_empty(drawn), "it stays"),
            Some((other, position)) => {
                assert_eq!(
                    (rule.split[position as usize - 1].service == *other, is_empty(drawn)),
                    (true, true)
                );
                *counts.entry(other.service.to_string()).or_insert(0_u32) += 1;
            }
        }
    }
    assert_eq!(counts.len(), 2);
    assert!((44_000..46_000).contains(&counts["new"]), "three quarters of six tenths: {counts:?}");
}

#[test]
fn traffic_split_keeps_key_at_backend_and_new_weights_move_few_keys() {
    let backend = |name, weight| Backend { service: ServiceName::new(name).unwrap(), weight };
    let rule = |old, new| {
        let mut route = route(0, Match::default(), vec![backend("shop/old", old), backend("shop/new", new)]);
        route.actions.split_key = vec![KeySource::Header("x-user".into()), KeySource::Query("user".into())];
        Rule::new(&route, "", None)
    };
    let of = |rule: &Rule, user: usize, seed: u64| {
        let headers = [("x-user".to_owned(), user.to_string())];
        let request = RequestView { host: "", path: "/", method: "GET", headers: &headers[..], grpc: false };
        rule.backend(&request, seed, &ServiceName::new("shop/own").unwrap()).0.service.to_string()
    };
    let (before, after) = (rule(90, 10), rule(80, 20));
    let (mut new, mut moved) = (0, 0);
    for user in 0..10_000 {
        let first = of(&before, user, 1);
        assert_eq!(first, of(&before, user, 2), "whatever the seed");
        let by_query = format!("/?user={user}");
        let request = RequestView::<[(String, String)]> {
            host: "",
            path: &by_query,
            method: "GET",
            headers: &[],
            grpc: false,
        };
        assert_eq!(
            before.backend(&request, 7, &ServiceName::new("shop/own").unwrap()).0.service.to_string(),
            first,
            "from the second source"
        );
        new += usize::from(first == "new");
        let second = of(&after, user, 1);
        moved += usize::from(first != second);
        assert!(first != "new" || second == "new", "none goes back");
    }
    assert!((850..1_150).contains(&new) && (850..1_150).contains(&moved), "{new} {moved}");
}
