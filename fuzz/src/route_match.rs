//! The compiled table of routes chooses the route that a literal reading of the documentation chooses.

#[path = "../../crates/decide/router/src/routes/tests/oracle.rs"]
mod oracle;

use arbitrary::{Arbitrary, Result, Unstructured};
use fairmesh_model::{
    GrpcMatch, HeaderMatch, HostMatch, Hosts, Label, Location, Match, PathMatch, Pattern, Policy, Protocol,
    QueryMatch, Region, Regions, RoundTrips, Route, Service, ServiceKind, ServiceName, Template, TextMatch,
    Verdicts,
};
use fairmesh_router::{CompileInput, RequestView, ServiceTable};
use oracle::Pairs;

/// Few words, so that conditions and requests often meet.
const SEGMENTS: [&str; 6] = ["a", "b", "ab", "v1", "", "A"];
const LABELS: [&str; 5] = ["a", "b", "ab", "shop", "org"];
const METHODS: [&str; 4] = ["GET", "POST", "PUT", "get"];
const NAMES: [&str; 3] = ["h1", "h2", "host"];
const TEXTS: [&str; 4] = ["", "x", "xy", "y"];

#[derive(Debug)]
struct Input {
    routes: Vec<Match>,
    host: String,
    path: String,
    method: &'static str,
    headers: Pairs,
    grpc: bool,
}

impl<'a> Arbitrary<'a> for Input {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        let host = joined(u, &LABELS, ".")?;
        let host = if u.arbitrary()? { host.to_uppercase() } else { host };
        let path = format!("/{}", joined(u, &SEGMENTS, "/")?);
        Ok(Self {
            host: host + *u.choose(&["", ":80", ":", ".", ".:80"])?,
            path: path + *u.choose(&["", "?", "?x=/a/b", "?x=x&y", "?y=xy&x="])?,
            method: *u.choose(&METHODS)?,
            headers: some(u, 3, |u| Ok((u.choose(&NAMES)?.to_string(), u.choose(&TEXTS)?.to_string())))?,
            grpc: u.arbitrary()?,
            routes: some(u, 130, a_match)?,
        })
    }
}

/// Up to `most` things.
fn some<'a, T>(
    u: &mut Unstructured<'a>,
    most: usize,
    mut make: impl FnMut(&mut Unstructured<'a>) -> Result<T>,
) -> Result<Vec<T>> {
    let count = u.int_in_range(0..=most)?;
    (0..count).map(|_| make(u)).collect()
}

fn joined(u: &mut Unstructured<'_>, words: &[&str], by: &str) -> Result<String> {
    let count = u.int_in_range(1..=4)?;
    let words: Vec<&str> = (0..count).map(|_| u.choose(words).copied()).collect::<Result<_>>()?;
    Ok(words.join(by))
}

fn maybe<T>(
    u: &mut Unstructured<'_>,
    make: impl FnOnce(&mut Unstructured<'_>) -> Result<T>,
) -> Result<Option<T>> {
    if u.arbitrary()? { make(u).map(Some) } else { Ok(None) }
}

fn a_match(u: &mut Unstructured<'_>) -> Result<Match> {
    Ok(Match {
        clients: Vec::new(),
        hosts: some(u, 2, |u| {
            let host = joined(u, &LABELS, ".")?;
            Ok(if u.arbitrary()? { HostMatch::Exact(host) } else { HostMatch::Suffix(format!(".{host}")) })
        })?,
        path: maybe(u, |u| {
            let path = format!("/{}", joined(u, &SEGMENTS, "/")?);
            Ok(match u.int_in_range(0..=3)? {
                0 => PathMatch::Exact(path),
                1 => PathMatch::Prefix(path.trim_end_matches('/').to_owned()),
                2 => {
                    let text = path.trim_end_matches('/').replace("/v1", "/{x}") + "/{y}";
                    match Template::new(&text) {
                        Ok(template) => PathMatch::Template(template),
                        Err(_) => PathMatch::Exact(path),
                    }
                }
                _ => PathMatch::Regex(Pattern::new("/.*/a").expect("it is an expression")),
            })
        })?,
        methods: some(u, 2, |u| Ok(u.choose(&METHODS)?.to_string()))?,
        headers: some(u, 2, |u| Ok(HeaderMatch { name: u.choose(&NAMES)?.to_string(), value: a_text(u)? }))?,
        query: some(u, 2, |u| {
            Ok(QueryMatch { name: u.choose(&["x", "y"])?.to_string(), value: a_text(u)? })
        })?,
        grpc: maybe(u, |u| {
            let method = maybe(u, |u| Ok(u.choose(&SEGMENTS[..2])?.to_string()))?;
            Ok(GrpcMatch { service: u.choose(&SEGMENTS[..3])?.to_string(), method })
        })?,
    })
}

fn a_text(u: &mut Unstructured<'_>) -> Result<TextMatch> {
    let text = u.choose(&TEXTS)?.to_string();
    Ok(match u.int_in_range(0..=4)? {
        0 => TextMatch::Present,
        1 => TextMatch::Absent,
        2 => TextMatch::Exact(text),
        3 => TextMatch::Prefix(text),
        _ => TextMatch::Regex(Pattern::new("x?y*").expect("it is an expression")),
    })
}

fn policy(routes: &[Match]) -> Policy {
    let route = |(i, matches): (usize, &Match)| Route {
        matches: matches.clone(),
        ..Route::new(Label::new(format!("r{i}")).expect("the name is well formed"))
    };
    Policy { routes: routes.iter().enumerate().map(route).collect(), ..Policy::default() }
}

/// What must hold of these bytes.
pub fn run(data: &[u8]) {
    let Ok(input) = Input::arbitrary_take_rest(Unstructured::new(data)) else { return };
    let service = Service {
        kind: ServiceKind::Replicated,
        protocol: Protocol::Http1,
        virtual_address: None,
        identity: None,
    };
    let facts = CompileInput {
        name: &ServiceName::new("shop/cart").expect("the name is well formed"),
        service: &service,
        policy: &policy(&input.routes),
        endpoints: &[],
        shards: None,
        location: &Location::in_region(Region::new("eu").expect("the name is well formed")),
        regions: &Regions::default(),
        round_trips: &RoundTrips::default(),
        table: None,
        hosts: &Hosts::default(),
        health: &Verdicts::default(),
        now: 0,
        client_id: "",
        client: 0,
        requires_mtls: false,
        authorizes_callers: false,
    };
    let upstream = ServiceTable::compile(&facts, &Default::default(), None);
    let Input { host, path, method, headers, grpc, .. } = &input;
    let request = RequestView { host, path, method, headers, grpc: *grpc };
    let chosen = upstream.route(&request, 0).route.map(ToString::to_string);
    let expected =
        input.routes.iter().position(|wanted| oracle::fits(wanted, &request)).map(|i| format!("r{i}"));
    assert_eq!(chosen, expected, "{input:?}");
}
