//! The compiled table of routes chooses what a literal reading of the documentation chooses.
#![no_main]

use arbitrary::{Arbitrary, Result, Unstructured};
use fairmesh_model::{
    GrpcMatch, HeaderMatch, HostMatch, Label, Location, Match, PathMatch, Policy, Protocol, Region, Regions,
    Hosts, RoundTrips, Route, Service, ServiceKind, ServiceName, TextMatch, Verdicts,
};
use fairmesh_router::{Facts, RequestView, Upstream};
use libfuzzer_sys::fuzz_target;

type Pairs = Vec<(String, String)>;

/// Few words, so that conditions and requests often meet.
const SEGMENTS: [&str; 6] = ["a", "b", "ab", "v1", "", "A"];
const LABELS: [&str; 5] = ["a", "b", "ab", "shop", "org"];
const METHODS: [&str; 4] = ["GET", "POST", "PUT", "get"];
const NAMES: [&str; 2] = ["h1", "h2"];
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
            host: host + *u.choose(&["", ":80", ":"])?,
            path: path + *u.choose(&["", "?", "?x=/a/b"])?,
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
        hosts: some(u, 2, |u| {
            let host = joined(u, &LABELS, ".")?;
            Ok(if u.arbitrary()? { HostMatch::Exact(host) } else { HostMatch::Suffix(format!(".{host}")) })
        })?,
        path: maybe(u, |u| {
            let path = format!("/{}", joined(u, &SEGMENTS, "/")?);
            Ok(match u.arbitrary()? {
                true => PathMatch::Exact(path),
                false => PathMatch::Prefix(path.trim_end_matches('/').to_owned()),
            })
        })?,
        methods: some(u, 2, |u| Ok(u.choose(&METHODS)?.to_string()))?,
        headers: some(u, 2, |u| {
            let text = u.choose(&TEXTS)?.to_string();
            let value = match u.int_in_range(0..=2)? {
                0 => TextMatch::Present,
                1 => TextMatch::Exact(text),
                _ => TextMatch::Prefix(text),
            };
            Ok(HeaderMatch { name: u.choose(&NAMES)?.to_string(), value })
        })?,
        grpc: maybe(u, |u| {
            let method = maybe(u, |u| Ok(u.choose(&SEGMENTS[..2])?.to_string()))?;
            Ok(GrpcMatch { service: u.choose(&SEGMENTS[..3])?.to_string(), method })
        })?,
    })
}

/// What the documentation says, read as literally as possible and sharing nothing with the compiled table.
fn naive(wanted: &Match, request: &Input) -> bool {
    let host = request.host.to_lowercase();
    let host = host.split(':').next().unwrap_or_default();
    let path = request.path.split('?').next().unwrap_or_default();
    let segments = |text: &str| text.split('/').map(str::to_owned).collect::<Vec<_>>();
    let path_fits = match &wanted.path {
        None => true,
        Some(PathMatch::Exact(exact)) => exact == path,
        Some(PathMatch::Prefix(prefix)) => segments(path).starts_with(&segments(prefix)),
    };
    let host_fits = wanted.hosts.iter().any(|wanted| match wanted {
        HostMatch::Exact(name) => name == host,
        HostMatch::Suffix(domain) => host.ends_with(domain) && host != domain,
    });
    let header_fits = |header: &HeaderMatch| {
        let value = request.headers.iter().find(|(name, _)| *name == header.name).map(|(_, value)| value);
        match &header.value {
            TextMatch::Present => value.is_some(),
            TextMatch::Exact(text) => value == Some(text),
            TextMatch::Prefix(text) => value.is_some_and(|value| value.starts_with(text)),
        }
    };
    let grpc_fits = wanted.grpc.as_ref().is_none_or(|grpc| {
        let parts = segments(path);
        let named = parts.len() >= 3 && parts[0].is_empty() && parts[1] == grpc.service;
        request.grpc && named && grpc.method.as_ref().is_none_or(|method| *method == parts[2..].join("/"))
    });
    path_fits
        && (wanted.hosts.is_empty() || host_fits)
        && (wanted.methods.is_empty() || wanted.methods.iter().any(|method| method == request.method))
        && wanted.headers.iter().all(header_fits)
        && grpc_fits
}

fn policy(routes: &[Match]) -> Policy {
    let route = |(i, matches): (usize, &Match)| Route {
        name: Label::new(format!("r{i}")).expect("the name is well formed"),
        matches: matches.clone(),
        split: Vec::new(),
        class: None,
        timeout: None,
        idempotent: false,
    };
    Policy { routes: routes.iter().enumerate().map(route).collect(), ..Policy::default() }
}

fuzz_target!(|input: Input| {
    let service = Service { kind: ServiceKind::Replicated, protocol: Protocol::Http1, virtual_address: None };
    let facts = Facts {
        name: &ServiceName::new("shop/cart").expect("the name is well formed"),
        service: &service,
        policy: &policy(&input.routes),
        endpoints: &[],
        shards: None,
        location: &Location::in_region(Region::new("eu").expect("the name is well formed")),
        regions: &Regions::default(),
        round_trips: &RoundTrips::default(),
        hosts: &Hosts::default(),
        health: &Verdicts::default(),
        client: 0,
    };
    let upstream = Upstream::compile(&facts, &Default::default(), None);
    let Input { host, path, method, headers, grpc, .. } = &input;
    let request = RequestView { host, path, method, headers, grpc: *grpc };
    let chosen = upstream.route(&request, 0).route.map(ToString::to_string);
    let expected = input.routes.iter().position(|wanted| naive(wanted, &input)).map(|i| format!("r{i}"));
    assert_eq!(chosen, expected, "{input:?}");
});
