//! What happens to calls of a route besides going somewhere, decided from the request and a seed.

use std::{sync::Arc, time::Duration};

use fairmesh_model::{
    Actions, HeaderEdits, Match, PathMatch, PathRewrite, RateLimit, Redirect, Scope, ServiceName, Share,
    arith::{Generator, mix64},
    host_name,
    quota::ALL_PARTS,
};

use crate::{Headers, RequestView, bucket::Bucket};

/// Streams of chance, apart from each other and from those that split and pick: `mix64(seed ^ stream)` begins each.
const ABORT: u64 = 0x6162_6f72_7400_0000;
const DELAY: u64 = 0x6465_6c61_7900_0000;
const MIRROR: u64 = 0x6d69_7272_6f72_0000;

/// The actions of a route, compiled.
#[derive(Debug)]
pub struct Treatment {
    actions: Actions,
    /// How long the prefix is that the route matches.
    prefix: usize,
    bucket: Option<Arc<Bucket>>,
}

/// What the caller gets instead of an answer of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Instead {
    /// It is sent elsewhere.
    Redirect {
        /// The status.
        status: u16,
        /// The header `location`.
        location: String,
    },
    /// A failure on purpose.
    Abort {
        /// The status.
        status: u16,
    },
}

impl Treatment {
    /// `None` where nothing happens. What was counted by `before` goes on being counted while the limit stays.
    pub(crate) fn compile(actions: &Actions, matches: &Match, before: Option<&Self>) -> Option<Self> {
        if *actions == Actions::default() {
            return None;
        }
        let prefix = match &matches.path {
            Some(PathMatch::Prefix(prefix)) => prefix.len(),
            _ => 0,
        };
        let bucket = carried(actions.limit, before.and_then(|before| before.bucket.as_ref()));
        Some(Self { actions: actions.clone(), prefix, bucket })
    }

    pub(crate) fn bucket(&self) -> Option<&Arc<Bucket>> {
        self.bucket.as_ref()
    }

    /// What the caller gets although no server is asked.
    pub fn instead<H: Headers + ?Sized>(&self, request: &RequestView<'_, H>, seed: u64) -> Option<Instead> {
        if let Some(redirect) = &self.actions.redirect {
            let location = self.location(redirect, request);
            return Some(Instead::Redirect { status: redirect.status, location });
        }
        let abort = self.actions.abort.filter(|abort| chosen(abort.share, seed, ABORT))?;
        Some(Instead::Abort { status: abort.status })
    }

    /// How long the call waits before it is made.
    pub fn delay(&self, seed: u64) -> Option<Duration> {
        self.actions.delay.filter(|delay| chosen(delay.share, seed, DELAY)).map(|delay| delay.time)
    }

    /// Who gets a copy of the call.
    pub fn mirror(&self, seed: u64) -> Option<&ServiceName> {
        let mirror = self.actions.mirror.as_ref();
        mirror.filter(|mirror| chosen(mirror.share, seed, MIRROR)).map(|mirror| &mirror.service)
    }

    /// The path and query that the server sees, where they are others.
    pub fn path(&self, path: &str) -> Option<String> {
        self.actions.rewrite.path.as_ref().map(|rewrite| rewritten(rewrite, path, self.prefix))
    }

    /// The host that the server sees, where it is another.
    pub fn host(&self) -> Option<&str> {
        self.actions.rewrite.host.as_deref()
    }

    /// What is done to the headers of the request.
    pub fn request_headers(&self) -> &HeaderEdits {
        &self.actions.request_headers
    }

    /// What is done to the headers of the answer.
    pub fn answer_headers(&self) -> &HeaderEdits {
        &self.actions.answer_headers
    }

    /// The longest that one try may take.
    pub fn try_timeout(&self) -> Option<Duration> {
        self.actions.try_timeout
    }

    /// The longest that a server is given.
    pub fn server_timeout(&self) -> Option<Duration> {
        self.actions.server_timeout
    }

    /// After which time without an answer another try is made beside the first.
    pub fn hedge_after(&self) -> Option<Duration> {
        self.actions.hedge_after
    }

    /// Where a redirect leads. What it does not say stays as the caller had it: a reference may leave out the scheme, or
    /// scheme and host (RFC 3986 4.2).
    fn location<H: Headers + ?Sized>(&self, redirect: &Redirect, request: &RequestView<'_, H>) -> String {
        let path = match &redirect.path {
            Some(rewrite) => rewritten(rewrite, request.path, self.prefix),
            None => rooted(request.path.to_owned()),
        };
        let host = redirect.host.as_deref().unwrap_or(host_name(request.host));
        let same_host = (redirect.https, &redirect.host, redirect.port) == (None, &None, None);
        if same_host || host.is_empty() {
            return path;
        }
        let scheme = redirect.https.map_or("", |https| if https { "https:" } else { "http:" });
        let port = redirect.port.map(|port| format!(":{port}")).unwrap_or_default();
        format!("{scheme}//{host}{port}{path}")
    }

    /// What is done, in words.
    pub(crate) fn describe<H: Headers + ?Sized>(
        &self,
        request: &RequestView<'_, H>,
        now: u64,
        seed: u64,
    ) -> Vec<String> {
        let mut words = Vec::new();
        if let Some(bucket) = self.bucket() {
            words.push(describe_limit("the route", bucket, now));
        }
        match self.instead(request, seed) {
            Some(Instead::Redirect { status, location }) => {
                words.push(format!("answered with {status} to {location}"));
                return words;
            }
            Some(Instead::Abort { status }) => {
                words.push(format!("answered with {status}, a failure on purpose"));
                return words;
            }
            None => {}
        }
        words.extend(self.delay(seed).map(|time| format!("waits for {time:?}, on purpose")));
        words.extend(self.path(request.path).map(|path| format!("the path becomes {path}")));
        words.extend(self.host().map(|host| format!("the host becomes {host}")));
        for (edits, of) in [(self.request_headers(), "request"), (self.answer_headers(), "answer")] {
            words.extend(
                (!edits.is_empty()).then(|| format!("headers of the {of}: {}", describe_edits(edits))),
            );
        }
        words.extend(self.mirror(seed).map(|service| format!("a copy goes to {service}")));
        words.extend(self.try_timeout().map(|time| format!("a try may take {time:?}")));
        words.extend(self.server_timeout().map(|time| format!("servers are given {time:?}")));
        let hedge =
            self.hedge_after().map(|after| format!("a second try is made beside the first after {after:?}"));
        words.extend(hedge);
        words
    }
}

/// The bucket of a limit: the one `before` while the limit stays the same.
pub(crate) fn carried(limit: Option<RateLimit>, before: Option<&Arc<Bucket>>) -> Option<Arc<Bucket>> {
    let limit = limit?;
    let same = before.filter(|before| *before.limit() == limit);
    Some(same.cloned().unwrap_or_else(|| Arc::new(Bucket::after(limit, before.map(Arc::as_ref)))))
}

/// Whether this call is one of the share, by a stream of chance of its own.
fn chosen(share: Share, seed: u64, stream: u64) -> bool {
    let all = u64::from(Share::ALL.millionths());
    Generator::new(mix64(seed ^ stream)).below(all) < u64::from(share.millionths())
}

/// A path and query with the path rewritten; `prefix` is how long the prefix is that it begins with.
fn rewritten(rewrite: &PathRewrite, path_and_query: &str, prefix: usize) -> String {
    let end = path_and_query.find('?').unwrap_or(path_and_query.len());
    let (path, query) = path_and_query.split_at(end);
    let path = match rewrite {
        PathRewrite::Full(path) => path.clone(),
        PathRewrite::Prefix(new) => format!("{new}{}", path.get(prefix..).unwrap_or_default()),
    };
    rooted(path + query)
}

/// A path that begins with one `/`: with two, a reader would take what follows for a host, so that a redirect would lead
/// wherever whoever made the link wants.
fn rooted(path: String) -> String {
    let rest = path.trim_start_matches(['/', '\\']);
    match path.strip_prefix('/') {
        Some(same) if same == rest => path,
        _ => format!("/{rest}"),
    }
}

/// `at most 100 calls in 1s of this caller to the route, 20 at once; 3 may pass now`.
pub(crate) fn describe_limit(of: &str, bucket: &Bucket, now: u64) -> String {
    let RateLimit { calls, per, burst, scope } = *bucket.limit();
    let left = bucket.left(now);
    let whose = match (scope, bucket.parts()) {
        (Scope::Caller, _) => String::from("of this caller"),
        (Scope::Mesh, None) => {
            String::from("of the whole mesh, of which this caller was told no part yet and has a tenth,")
        }
        (Scope::Mesh, Some(parts)) => {
            let tenths = u64::from(parts) * 1_000 / u64::from(ALL_PARTS);
            format!("of the whole mesh, of which this caller has {}.{} %,", tenths / 10, tenths % 10)
        }
    };
    format!("at most {calls} calls in {per:?} {whose} to {of}, {burst} at once; {left} may pass now")
}

fn describe_edits(edits: &HeaderEdits) -> String {
    let sets = edits.set.keys().map(|name| format!("sets {name}"));
    let adds = edits.add.keys().map(|name| format!("adds {name}"));
    let removes = edits.remove.iter().map(|name| format!("removes {name}"));
    sets.chain(adds).chain(removes).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use fairmesh_model::{Abort, Delay};

    use super::*;

    fn treat(actions: Actions, prefix: &str) -> Treatment {
        let path = Some(PathMatch::Prefix(prefix.into()));
        Treatment::compile(&actions, &Match { path, ..Match::default() }, None).unwrap()
    }

    fn redirected(redirect: Redirect, host: &str, path: &str) -> String {
        let treatment = treat(Actions { redirect: Some(redirect), ..Actions::default() }, "/old");
        let request = RequestView { host, path, method: "GET", headers: &(), grpc: false };
        match treatment.instead(&request, 0) {
            Some(Instead::Redirect { status: 301, location }) => location,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_prefix_is_replaced_by_whole_segments() {
        let to = |new: &str, path| rewritten(&PathRewrite::Prefix(new.into()), path, "/foo".len());
        for (new, path, expected) in [
            ("/xyz", "/foo/bar", "/xyz/bar"),
            ("/xyz", "/foo", "/xyz"),
            ("/xyz", "/foo/", "/xyz/"),
            ("/xyz", "/foo?a=/foo", "/xyz?a=/foo"),
            ("", "/foo/bar", "/bar"),
            ("", "/foo", "/"),
            ("", "/foo/", "/"),
            ("", "/foo?a", "/?a"),
        ] {
            assert_eq!(to(new, path), expected, "{path} to {new}");
        }
        assert_eq!(rewritten(&PathRewrite::Full("/x".into()), "/foo/bar?a=1", 4), "/x?a=1");
    }

    #[test]
    fn a_redirect_keeps_what_it_does_not_name() {
        let none = Redirect { https: None, host: None, port: None, path: None, status: 301 };
        let path = Some(PathRewrite::Prefix("/new".into()));
        let to = |redirect: &Redirect| redirected(redirect.clone(), "cart.shop:8080", "/old/a?b=c");
        assert_eq!(to(&Redirect { path: path.clone(), ..none.clone() }), "/new/a?b=c");
        assert_eq!(to(&Redirect { https: Some(true), ..none.clone() }), "https://cart.shop/old/a?b=c");
        assert_eq!(to(&Redirect { host: Some("x.org".into()), ..none.clone() }), "//x.org/old/a?b=c");
        let far =
            Redirect { https: Some(false), host: Some("x.org".into()), port: Some(81), path, status: 301 };
        assert_eq!(to(&far), "http://x.org:81/new/a?b=c");
        assert_eq!(to(&Redirect { port: Some(81), ..none }), "//cart.shop:81/old/a?b=c");
    }

    #[test]
    fn a_redirect_leads_to_no_host_that_only_the_caller_named() {
        let bare = Redirect {
            https: None,
            host: None,
            port: None,
            path: Some(PathRewrite::Prefix(String::new())),
            status: 301,
        };
        for path in ["/old//evil.example", "/old/\\evil.example", "/old///evil.example"] {
            assert_eq!(redirected(bare.clone(), "cart.shop", path), "/evil.example", "{path}");
        }
    }

    #[test]
    fn chance_strikes_the_share_and_each_action_by_itself() {
        let share = |text: &str| text.parse::<Share>().unwrap();
        let actions = Actions {
            abort: Some(Abort { share: share("10%"), status: 503 }),
            delay: Some(Delay { share: share("10%"), time: Duration::from_millis(5) }),
            ..Actions::default()
        };
        let treatment = treat(actions, "");
        let request = RequestView { host: "", path: "/", method: "GET", headers: &(), grpc: false };
        let (mut aborted, mut delayed, mut both) = (0, 0, 0);
        for seed in 0..100_000_u64 {
            let (abort, delay) =
                (treatment.instead(&request, seed).is_some(), treatment.delay(seed).is_some());
            aborted += u32::from(abort);
            delayed += u32::from(delay);
            both += u32::from(abort && delay);
        }
        assert!(
            (9_500..10_500).contains(&aborted) && (9_500..10_500).contains(&delayed),
            "{aborted} {delayed}"
        );
        assert!((800..1_200).contains(&both), "not the same calls: {both}");
        assert!((0..10_000).all(|seed| chosen(Share::ALL, seed, ABORT) && !chosen(share("0%"), seed, ABORT)));
    }
}
