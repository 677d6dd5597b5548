//! Route actions other than the choice of a backend. Decisions depend on the request and a random seed.

use std::{sync::Arc, time::Duration};

use fairmesh_model::{
    Abort, Actions, Delay, HeaderEdits, KeySource, Match, Mirror, PathMatch, PathRewrite, RateLimit,
    Redirect, Role, Scope, ServiceName, Share,
    arith::{Generator, mix64},
    host_name,
    rate_limit_quota::ALL_PARTS,
};

use crate::{Headers, RequestView, token_bucket::TokenBucket};

/// Salts of independent random streams, which are also independent of splits and picks. Each stream begins with
/// `mix64(seed ^ stream)`.
const ABORT: u64 = 0x6162_6f72_7400_0000;
const DELAY: u64 = 0x6465_6c61_7900_0000;
const MIRROR: u64 = 0x6d69_7272_6f72_0000;

/// The compiled actions of a route.
#[derive(Debug)]
pub struct RouteActions {
    actions: Actions,
    /// Length of the path prefix that the route matches, in bytes.
    prefix: usize,
    bucket: Option<Arc<TokenBucket>>,
}

/// A response generated without calling a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DirectResponse {
    /// A redirect.
    Redirect {
        /// Status of the redirect.
        status: u16,
        /// Value of the header `location`.
        location: String,
    },
    /// An injected failure.
    Abort {
        /// Status of the response.
        status: u16,
    },
}

impl RouteActions {
    /// Compiles the actions of a route; `None` if there are none. A rate limit that is unchanged since `before` keeps
    /// its state.
    pub(crate) fn compile(actions: &Actions, matches: &Match, before: Option<&Self>) -> Option<Self> {
        if *actions == Actions::default() {
            return None;
        }
        let prefix = match &matches.path {
            Some(PathMatch::Prefix(prefix)) => prefix.len(),
            _ => 0,
        };
        let bucket = carry_over(actions.limit, before.and_then(|before| before.bucket.as_ref()));
        Some(Self { actions: actions.clone(), prefix, bucket })
    }

    pub(crate) fn bucket(&self) -> Option<&Arc<TokenBucket>> {
        self.bucket.as_ref()
    }

    /// The response that the route gives without calling a server, if any.
    pub fn direct_response<H: Headers + ?Sized>(
        &self,
        request: &RequestView<'_, H>,
        seed: u64,
    ) -> Option<DirectResponse> {
        if let Some(redirect) = &self.actions.redirect {
            let location = self.location(redirect, request);
            return Some(DirectResponse::Redirect { status: redirect.status, location });
        }
        let abort = self.actions.abort.filter(|abort| is_sampled(abort.share, seed, ABORT))?;
        Some(DirectResponse::Abort { status: abort.status })
    }

    /// The injected delay of the call, if any.
    pub fn delay(&self, seed: u64) -> Option<Duration> {
        self.actions.delay.filter(|delay| is_sampled(delay.share, seed, DELAY)).map(|delay| delay.time)
    }

    /// The service that receives a mirrored copy of the call.
    pub fn mirror(&self, seed: u64) -> Option<&ServiceName> {
        let mirror = self.actions.mirror.as_ref();
        mirror.filter(|mirror| is_sampled(mirror.share, seed, MIRROR)).map(|mirror| &mirror.service)
    }

    /// The sources of the key that determines the split's backend.
    pub(crate) fn split_key(&self) -> &[KeySource] {
        &self.actions.split_key
    }

    /// Whether the other backends get the calls for which a backend without endpoints was drawn.
    pub(crate) fn redistributes_empty(&self) -> bool {
        self.actions.redistributes_empty
    }

    /// The replica role for calls that request no role.
    pub fn role(&self) -> Option<&Role> {
        self.actions.role.as_ref()
    }

    /// Whether a repeatable call is retried after a response with this status.
    pub fn retries_on(&self, status: u16) -> bool {
        self.actions.retry_on.contains(&status)
    }

    /// The rewritten path and query; `None` if unchanged.
    pub fn path(&self, path: &str) -> Option<String> {
        self.actions.rewrite.path.as_ref().map(|rewrite| rewrite_path(rewrite, path, self.prefix))
    }

    /// The rewritten host; `None` if unchanged.
    pub fn host(&self) -> Option<&str> {
        self.actions.rewrite.host.as_deref()
    }

    /// Header edits for requests.
    pub fn request_headers(&self) -> &HeaderEdits {
        &self.actions.request_headers
    }

    /// Header edits for responses.
    pub fn response_headers(&self) -> &HeaderEdits {
        &self.actions.response_headers
    }

    /// Timeout of a single attempt.
    pub fn attempt_timeout(&self) -> Option<Duration> {
        self.actions.attempt_timeout
    }

    /// Maximum deadline that is sent to servers.
    pub fn server_timeout(&self) -> Option<Duration> {
        self.actions.server_timeout
    }

    /// Time without a response after which a hedged attempt is started.
    pub fn hedge_after(&self) -> Option<Duration> {
        self.actions.hedge_after
    }

    /// Builds the target of a redirect. Missing parts are taken from the request: a reference may omit the scheme, or
    /// scheme and host (RFC 3986 4.2).
    fn location<H: Headers + ?Sized>(&self, redirect: &Redirect, request: &RequestView<'_, H>) -> String {
        let path = match &redirect.path {
            Some(rewrite) => rewrite_path(rewrite, request.path, self.prefix),
            None => single_leading_slash(request.path.to_owned()),
        };
        let host = redirect.host.as_deref().unwrap_or(host_name(request.host));
        let same_host = (redirect.https, &redirect.host, redirect.port) == (None, &None, None);
        if same_host || host.is_empty() {
            return path;
        }
        let scheme = redirect.https.map_or("", |https| if https { "https:" } else { "http:" });
        // The default port of a scheme is left out (RFC 3986 6.2.3).
        let default = redirect.https.map(|https| if https { 443 } else { 80 });
        let port = redirect.port.filter(|port| Some(*port) != default);
        let port = port.map(|port| format!(":{port}")).unwrap_or_default();
        format!("{scheme}//{host}{port}{path}")
    }

    /// Describes the actions for explanations.
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
        words.extend(self.describe_shares());
        match self.direct_response(request, seed) {
            Some(DirectResponse::Redirect { status, location }) => {
                words.push(format!("redirects with {status} to {location}"));
                return words;
            }
            Some(DirectResponse::Abort { status }) => {
                words.push(format!("aborts with {status}, an injected fault"));
                return words;
            }
            None => {}
        }
        words.extend(self.delay(seed).map(|time| format!("waits for {time:?}, an injected delay")));
        words.extend(self.path(request.path).map(|path| format!("the path becomes {path}")));
        words.extend(self.host().map(|host| format!("the host becomes {host}")));
        for (edits, of) in [(self.request_headers(), "request"), (self.response_headers(), "response")] {
            words.extend(
                (!edits.is_empty()).then(|| format!("headers of the {of}: {}", describe_edits(edits))),
            );
        }
        words.extend(self.role().map(|role| format!("calls without a role go to copies of role '{role}'")));
        words.extend(self.describe_retries());
        words.extend(self.mirror(seed).map(|service| format!("mirrors to {service}")));
        words.extend(self.attempt_timeout().map(|time| format!("an attempt may take {time:?}")));
        words.extend(self.server_timeout().map(|time| format!("servers get a deadline of {time:?}")));
        let hedge = self.hedge_after().map(|after| format!("hedges with a second attempt after {after:?}"));
        words.extend(hedge);
        words
    }
}

impl RouteActions {
    fn describe_retries(&self) -> Option<String> {
        let statuses: Vec<_> = self.actions.retry_on.iter().map(ToString::to_string).collect();
        (!statuses.is_empty())
            .then(|| format!("retries after {} too, where repeating is safe", statuses.join(", ")))
    }

    /// Describes what the route does to a share of its calls, whether or not it applies to this call.
    fn describe_shares(&self) -> impl Iterator<Item = String> {
        let Actions { abort, delay, mirror, .. } = &self.actions;
        let abort =
            abort.map(|Abort { share, status }| format!("fault: {share} of calls are aborted with {status}"));
        let delay =
            delay.map(|Delay { share, time }| format!("fault: {share} of calls are delayed by {time:?}"));
        let mirror = mirror.as_ref();
        let mirror = mirror
            .map(|Mirror { service, share }| format!("mirror: {share} of calls are copied to {service}"));
        abort.into_iter().chain(delay).chain(mirror)
    }
}

/// Returns the token bucket of a limit: the bucket in `before` if the limit is unchanged, otherwise a new one.
pub(crate) fn carry_over(
    limit: Option<RateLimit>,
    before: Option<&Arc<TokenBucket>>,
) -> Option<Arc<TokenBucket>> {
    let limit = limit?;
    let same = before.filter(|before| *before.limit() == limit);
    Some(same.cloned().unwrap_or_else(|| Arc::new(TokenBucket::succeeding(limit, before.map(Arc::as_ref)))))
}

/// Whether this call is in the sampled share, drawn from an independent random stream.
fn is_sampled(share: Share, seed: u64, stream: u64) -> bool {
    let all = u64::from(Share::ALL.millionths());
    Generator::new(mix64(seed ^ stream)).below(all) < u64::from(share.millionths())
}

/// Returns a path and query with the path rewritten. `prefix` is the length of the matched prefix.
fn rewrite_path(rewrite: &PathRewrite, path_and_query: &str, prefix: usize) -> String {
    let end = path_and_query.find('?').unwrap_or(path_and_query.len());
    let (path, query) = path_and_query.split_at(end);
    let path = match rewrite {
        PathRewrite::Full(path) => path.clone(),
        PathRewrite::Prefix(new) => format!("{new}{}", path.get(prefix..).unwrap_or_default()),
    };
    single_leading_slash(path + query)
}

/// Ensures that a path begins with exactly one `/`. Clients would read the text after `//` as a host, so whoever wrote
/// a link could choose the host of a redirect.
fn single_leading_slash(path: String) -> String {
    let rest = path.trim_start_matches(['/', '\\']);
    match path.strip_prefix('/') {
        Some(same) if same == rest => path,
        _ => format!("/{rest}"),
    }
}

/// Describes a limit: `at most 100 calls in 1s of this caller to the route, 20 at once; 3 may pass now`.
pub(crate) fn describe_limit(of: &str, bucket: &TokenBucket, now: u64) -> String {
    let RateLimit { calls, per, burst, scope } = *bucket.limit();
    let left = bucket.available(now);
    let whose = match (scope, bucket.parts()) {
        (Scope::Caller, _) => String::from("of this caller"),
        (Scope::Mesh, None) => {
            String::from("of the whole mesh, of which this caller was granted no part yet and uses a tenth,")
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
    use super::*;

    fn route_actions(actions: Actions, prefix: &str) -> RouteActions {
        let path = Some(PathMatch::Prefix(prefix.into()));
        RouteActions::compile(&actions, &Match { path, ..Match::default() }, None).unwrap()
    }

    fn redirected(redirect: Redirect, host: &str, path: &str) -> String {
        let actions = route_actions(Actions { redirect: Some(redirect), ..Actions::default() }, "/old");
        let request = RequestView { host, path, method: "GET", headers: &(), grpc: false };
        match actions.direct_response(&request, 0) {
            Some(DirectResponse::Redirect { status: 301, location }) => location,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn rewrite_replaces_path_prefix_by_whole_segments() {
        let to = |new: &str, path| rewrite_path(&PathRewrite::Prefix(new.into()), path, "/foo".len());
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
        assert_eq!(rewrite_path(&PathRewrite::Full("/x".into()), "/foo/bar?a=1", 4), "/x?a=1");
    }

    #[test]
    fn redirect_keeps_url_parts_it_does_not_name() {
        let none = Redirect { https: None, host: None, port: None, path: None, status: 301 };
        let path = Some(PathRewrite::Prefix("/new".into()));
        let to = |redirect: &Redirect| redirected(redirect.clone(), "cart.shop:8080", "/old/a?b=c");
        assert_eq!(to(&Redirect { path: path.clone(), ..none.clone() }), "/new/a?b=c");
        assert_eq!(to(&Redirect { https: Some(true), ..none.clone() }), "https://cart.shop/old/a?b=c");
        assert_eq!(to(&Redirect { host: Some("x.org".into()), ..none.clone() }), "//x.org/old/a?b=c");
        let far =
            Redirect { https: Some(false), host: Some("x.org".into()), port: Some(81), path, status: 301 };
        assert_eq!(to(&far), "http://x.org:81/new/a?b=c");
        assert_eq!(to(&Redirect { port: Some(81), ..none.clone() }), "//cart.shop:81/old/a?b=c");
        for (https, port, expected) in [
            (true, 443, "https://cart.shop/old/a?b=c"),
            (false, 80, "http://cart.shop/old/a?b=c"),
            (false, 443, "http://cart.shop:443/old/a?b=c"),
        ] {
            let redirect = Redirect { https: Some(https), port: Some(port), ..none.clone() };
            assert_eq!(to(&redirect), expected);
        }
    }

    #[test]
    fn request_path_cannot_inject_redirect_host() {
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
    fn shares_of_route_actions_apply_independently_of_each_other() {
        let share = |text: &str| text.parse::<Share>().unwrap();
        let actions = Actions {
            abort: Some(Abort { share: share("10%"), status: 503 }),
            delay: Some(Delay { share: share("10%"), time: Duration::from_millis(5) }),
            ..Actions::default()
        };
        let actions = route_actions(actions, "");
        let request = RequestView { host: "", path: "/", method: "GET", headers: &(), grpc: false };
        let (mut aborted, mut delayed, mut both) = (0, 0, 0);
        for seed in 0..100_000_u64 {
            let (abort, delay) =
                (actions.direct_response(&request, seed).is_some(), actions.delay(seed).is_some());
            aborted += u32::from(abort);
            delayed += u32::from(delay);
            both += u32::from(abort && delay);
        }
        assert!(
            (9_500..10_500).contains(&aborted) && (9_500..10_500).contains(&delayed),
            "{aborted} {delayed}"
        );
        assert!((800..1_200).contains(&both), "the shares are independent: {both}");
        assert!(
            (0..10_000)
                .all(|seed| is_sampled(Share::ALL, seed, ABORT) && !is_sampled(share("0%"), seed, ABORT))
        );
    }
}
