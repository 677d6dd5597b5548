use fairmesh_model::{HostMatch, Match, PathMatch, Route};

use super::condition::{MatchInput, host_satisfies, path_satisfies};
use crate::Headers;

/// Candidate routes by host, path and method. Each of the three lookups gives one set of routes; a candidate must be in
/// all three sets.
#[derive(Debug)]
pub(super) struct Index {
    /// Number of 64-bit words per set.
    words: usize,
    /// All sets, concatenated.
    sets: Vec<u64>,
    hosts: TextSets,
    prefixes: TextSets,
    paths: TextSets,
    methods: Vec<(String, Set)>,
    other_methods: Set,
}

/// Offset of a set in `sets`.
type Set = u32;

/// Sets by text, found by a hash that is computed byte by byte. The set of a text contains every route that matches
/// anything the text covers, so only the longest text found is used.
#[derive(Debug)]
struct TextSets {
    /// Entries sorted by hash.
    entries: Vec<(u64, Box<str>, Set)>,
    /// The set for inputs that no text covers.
    uncovered: Set,
}

const FNV_START: u64 = 0xcbf2_9ce4_8422_2325;

/// One step of FNV-1a.
#[inline]
fn fold(hash: u64, byte: u8) -> u64 {
    (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
}

/// Hashes a host from its end, where the domain is, ignoring case.
fn hash_host(host: &str) -> u64 {
    host.bytes().rev().fold(FNV_START, |hash, byte| fold(hash, byte.to_ascii_lowercase()))
}

fn hash_path(path: &str) -> u64 {
    path.bytes().fold(FNV_START, fold)
}

/// Returns the path condition of a match. A condition on a gRPC method counts as a narrower path condition. `None` if
/// the index cannot use the condition.
fn path_of(condition: &Match) -> Option<PathMatch> {
    match &condition.grpc {
        None => match &condition.path {
            Some(PathMatch::Template(template)) => Some(PathMatch::Prefix(template.literal_prefix())),
            Some(PathMatch::Regex(_)) => None,
            path => path.clone(),
        },
        Some(grpc) => Some(match &grpc.method {
            Some(method) => PathMatch::Exact(format!("/{}/{method}", grpc.service)),
            None => PathMatch::Prefix(format!("/{}", grpc.service)),
        }),
    }
}

impl Index {
    pub(super) fn new(routes: &[Route]) -> Self {
        let mut sets = Sets { words: routes.len().div_ceil(64), sets: Vec::new() };
        let conditions: Vec<&Match> = routes.iter().map(|route| &route.matches).collect();
        let paths: Vec<Option<PathMatch>> = conditions.iter().map(|condition| path_of(condition)).collect();
        let hosts = sets.hosts(&conditions);
        let (prefixes, exact) = sets.paths(&paths);
        let mut names: Vec<&String> = conditions.iter().flat_map(|condition| &condition.methods).collect();
        names.sort_unstable();
        names.dedup();
        let allows = |condition: &Match, name: &String| {
            condition.methods.is_empty() || condition.methods.contains(name)
        };
        let methods = names
            .iter()
            .map(|name| ((*name).clone(), sets.add(&conditions, |condition| allows(condition, name))))
            .collect();
        let other_methods = sets.add(&conditions, |condition| condition.methods.is_empty());
        Self { words: sets.words, sets: sets.sets, hosts, prefixes, paths: exact, methods, other_methods }
    }

    /// Returns the first candidate route for which `check` holds.
    #[inline]
    pub(super) fn find<H: Headers + ?Sized>(
        &self,
        input: &MatchInput<'_, H>,
        check: impl Fn(usize) -> bool,
    ) -> Option<usize> {
        let method =
            self.methods.iter().find(|(name, _)| name == input.method).map_or(self.other_methods, |m| m.1);
        let [hosts, paths, methods] = [self.host(input.host), self.path(input.path), method].map(|set| {
            let start = set as usize;
            &self.sets[start..start + self.words]
        });
        for (word, ((host, path), method)) in hosts.iter().zip(paths).zip(methods).enumerate() {
            let mut left = host & path & method;
            while left != 0 {
                let route = word * 64 + left.trailing_zeros() as usize;
                if check(route) {
                    return Some(route);
                }
                left &= left - 1;
            }
        }
        None
    }

    fn host(&self, host: &str) -> Set {
        let mut found = self.hosts.uncovered;
        let mut hash = FNV_START;
        for (i, byte) in host.bytes().enumerate().rev() {
            hash = fold(hash, byte.to_ascii_lowercase());
            if byte == b'.' || i == 0 {
                found = self.hosts.get(hash, |text| text.eq_ignore_ascii_case(&host[i..])).unwrap_or(found);
            }
        }
        found
    }

    fn path(&self, path: &str) -> Set {
        let mut found = self.prefixes.uncovered;
        let mut hash = FNV_START;
        for (i, byte) in path.bytes().enumerate() {
            if byte == b'/' {
                found = self.prefixes.get(hash, |text| text == &path[..i]).unwrap_or(found);
            }
            hash = fold(hash, byte);
        }
        found = self.prefixes.get(hash, |text| text == path).unwrap_or(found);
        self.paths.get(hash, |text| text == path).unwrap_or(found)
    }
}

impl TextSets {
    #[inline]
    fn get(&self, hash: u64, same: impl Fn(&str) -> bool) -> Option<Set> {
        let first = self.entries.partition_point(|entry| entry.0 < hash);
        let equal = self.entries[first..].iter().take_while(|entry| entry.0 == hash);
        equal.into_iter().find(|entry| same(&entry.1)).map(|entry| entry.2)
    }
}

/// Sets under construction.
struct Sets {
    words: usize,
    sets: Vec<u64>,
}

impl Sets {
    fn add<T>(&mut self, routes: &[T], holds: impl Fn(&T) -> bool) -> Set {
        let start = self.sets.len();
        self.sets.resize(start + self.words, 0);
        for (i, route) in routes.iter().enumerate() {
            self.sets[start + i / 64] |= u64::from(holds(route)) << (i % 64);
        }
        start as Set
    }

    fn texts<T>(
        &mut self,
        mut texts: Vec<&str>,
        hash: fn(&str) -> u64,
        routes: &[T],
        holds: impl Fn(&T, Option<&str>) -> bool,
    ) -> TextSets {
        texts.sort_unstable();
        texts.dedup();
        let mut entries: Vec<_> = texts
            .into_iter()
            .map(|text| (hash(text), text.into(), self.add(routes, |route| holds(route, Some(text)))))
            .collect();
        entries.sort_unstable();
        TextSets { entries, uncovered: self.add(routes, |route| holds(route, None)) }
    }

    fn hosts(&mut self, conditions: &[&Match]) -> TextSets {
        let texts = conditions.iter().flat_map(|condition| &condition.hosts).map(|host| match host {
            HostMatch::Exact(text) | HostMatch::Suffix(text) => text.as_str(),
        });
        self.texts(texts.collect(), hash_host, conditions, |condition, text| {
            condition.hosts.is_empty()
                || text.is_some_and(|text| condition.hosts.iter().any(|host| covers(host, text)))
        })
    }

    /// Returns the sets by path prefix, and the sets by exact path.
    fn paths<'a>(&mut self, paths: &'a [Option<PathMatch>]) -> (TextSets, TextSets) {
        let of = |exact: bool| {
            let text = move |path: &'a Option<PathMatch>| match path {
                Some(PathMatch::Exact(text)) => Some(text.as_str()).filter(|_| exact),
                Some(PathMatch::Prefix(text)) => Some(text.as_str()).filter(|_| !exact),
                // Not indexed; see `path_of`.
                Some(PathMatch::Template(_) | PathMatch::Regex(_)) | None => None,
            };
            paths.iter().filter_map(text)
        };
        let below = |path: &Option<PathMatch>, text: Option<&str>| match (path, text) {
            (None, _) => true,
            (Some(path @ PathMatch::Prefix(_)), Some(text)) => path_satisfies(text, path),
            _ => false,
        };
        let at = |path: &Option<PathMatch>, text: Option<&str>| match (path, text) {
            (None, _) => true,
            (Some(path), Some(text)) => path_satisfies(text, path),
            _ => false,
        };
        (
            self.texts(of(false).collect(), hash_path, paths, below),
            self.texts(of(true).collect(), hash_path, paths, at),
        )
    }
}

/// Whether a route with this host condition may match a host that `text` covers: that host itself, or one below
/// `.domain`.
fn covers(condition: &HostMatch, text: &str) -> bool {
    let same_domain = matches!(condition, HostMatch::Suffix(domain) if domain.eq_ignore_ascii_case(text));
    same_domain || host_satisfies(text, condition)
}
