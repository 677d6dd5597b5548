use std::sync::Arc;

use fairmesh_model::{
    Backend, Label, Match, Route, ServiceName, Timeouts,
    arith::{Generator, hash_key, mix_pair, mix64},
};

use crate::{Headers, RequestView, RouteActions, TokenBucket, request_key};

mod condition;
mod index;
mod parameters;
mod route_numbers;

use condition::{MatchInput, host_satisfies};
use index::Index;
pub(crate) use parameters::{cookie, decoded, parameter};
pub use route_numbers::{ROUTE_ARMS, ROUTE_STEPS, RouteArm, RouteNumbers, RouteStep};

/// Maximum number of routes that are checked in order. With so few, an index would cost more than it saves.
const SCAN_UP_TO: usize = 6;

/// Salt that makes the backend of a key independent of other uses of the key: the bytes of `split`.
const SPLIT_SALT: u64 = 0x73_706c_6974;

/// The routes of a policy, compiled so that a call has to check only a few.
///
/// The index only excludes routes that cannot match; the others are checked completely, in order. An error in the index
/// could therefore skip a route (tests compare with an oracle), but never match a wrong one. Clones share the rules
/// while the policy is unchanged. Each part is shared separately, since sharing the whole would cost every call another
/// memory load before the rules.
#[derive(Clone, Debug)]
pub(crate) struct Routes {
    rules: Arc<[Rule]>,
    /// Index of the routes, if there are many. Behind a pointer, since most services have few routes and every call
    /// reads this struct.
    index: Option<Arc<Index>>,
}

/// One route of the policy, with its [`RouteActions`] behind a pointer. Most routes have no actions, and inline actions
/// would take most of a service's memory.
#[derive(Debug)]
pub(crate) struct Rule {
    pub(crate) name: Label,
    matches: Match,
    split: Box<[Backend]>,
    /// Position of the route's first backend among the backends of all routes.
    first_route_backend: u32,
    pub(crate) class: Option<Label>,
    pub(crate) timeouts: Timeouts,
    pub(crate) idempotent: bool,
    /// Whether the route's client condition matches this caller.
    matches_client: bool,
    /// Cumulative weights of the split's backends.
    cumulative_weights: Box<[u64]>,
    /// Route actions other than the choice of a backend.
    pub(crate) actions: Option<Arc<RouteActions>>,
}

impl Routes {
    /// Compiles the routes of a valid policy. Rate limits that are unchanged since `before` keep their state.
    pub(crate) fn compile(routes: &[Route], client: &str, before: Option<&Self>) -> Self {
        let same = |route: &Route| before?.rules.iter().find(|rule| rule.name == route.name);
        let mut first_route_backend = 0;
        let rule = |route: &Route| {
            let rule = Rule { first_route_backend, ..Rule::new(route, client, same(route)) };
            first_route_backend += rule.split.len().max(1) as u32;
            rule
        };
        let rules: Arc<[Rule]> = routes.iter().map(rule).collect();
        let index = (rules.len() > SCAN_UP_TO).then(|| Arc::new(Index::new(routes)));
        Self { rules, index }
    }

    /// Returns the first route that matches, with its position.
    #[inline]
    pub(crate) fn find<H: Headers + ?Sized>(&self, request: &RequestView<'_, H>) -> Option<(usize, &Rule)> {
        if self.rules.is_empty() {
            return None;
        }
        let input = MatchInput::new(request);
        match &self.index {
            None => self
                .rules
                .iter()
                .enumerate()
                .find(|(_, rule)| rule.matches_client && input.satisfies(&rule.matches)),
            Some(index) => index
                .find(&input, |i| self.rules[i].matches_client && input.satisfies(&self.rules[i].matches))
                .map(|i| (i, &self.rules[i])),
        }
    }

    /// All routes with each of their backends. For a route without backends, the service itself counts as the backend.
    pub(crate) fn route_backends<'a>(
        &'a self,
        own: &'a ServiceName,
    ) -> impl Iterator<Item = (&'a Label, &'a ServiceName)> {
        self.rules.iter().flat_map(move |rule| {
            let own = rule.split.is_empty().then_some(own);
            let backends = rule.split.iter().map(|backend| &backend.service).chain(own);
            backends.map(|backend| (&rule.name, backend))
        })
    }

    /// The backends of routes that redistribute the calls of empty backends.
    pub(crate) fn redistributed_backends(&self) -> impl Iterator<Item = &ServiceName> {
        let redistributes =
            |rule: &&Rule| rule.actions.as_ref().is_some_and(|actions| actions.redistributes_empty());
        let splits = self.rules.iter().filter(redistributes).flat_map(|rule| &rule.split);
        splits.map(|backend| &backend.service)
    }

    /// The rate limits of this caller's routes, with the routes' names.
    pub(crate) fn buckets(&self) -> impl Iterator<Item = (&str, &Arc<TokenBucket>)> {
        let ours = self.rules.iter().filter(|rule| rule.matches_client);
        ours.filter_map(|rule| Some((rule.name.as_str(), rule.actions.as_ref()?.bucket()?)))
    }

    /// Whether a route for this caller names this host in its condition, exactly or with a wildcard.
    pub(crate) fn names_host(&self, host: &str) -> bool {
        let mut hosts =
            self.rules.iter().filter(|rule| rule.matches_client).flat_map(|rule| &rule.matches.hosts);
        hosts.any(|wanted| host_satisfies(host, wanted))
    }

    pub(crate) fn len(&self) -> usize {
        self.rules.len()
    }

    #[cfg(test)]
    pub(crate) fn shares_rules(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.rules, &other.rules)
    }
}

impl Rule {
    /// Whether the route names CONNECT among its methods. A rule for any method does not count.
    pub(crate) fn names_connect(&self) -> bool {
        self.matches.methods.iter().any(|method| method == "CONNECT")
    }

    fn new(route: &Route, client: &str, before: Option<&Self>) -> Self {
        let mut total = 0;
        let cumulative_weights = route.split.iter().map(|target| {
            total += u64::from(target.weight);
            total
        });
        let clients = &route.matches.clients;
        let matches_client = clients.is_empty() || clients.iter().any(|wanted| wanted.matches(client));
        let before = before.and_then(|before| before.actions.as_deref());
        let actions = RouteActions::compile(&route.actions, &route.matches, before).map(Arc::new);
        let Route { name, matches, split, class, timeouts, idempotent, actions: _ } = route;
        Self {
            cumulative_weights: cumulative_weights.collect(),
            name: name.clone(),
            matches: matches.clone(),
            split: split.as_slice().into(),
            first_route_backend: 0,
            class: class.clone(),
            timeouts: *timeouts,
            idempotent: *idempotent,
            actions,
            matches_client,
        }
    }

    /// Returns the backend for this request and seed, which is `own` without a split, and its position among the
    /// backends of all routes, plus one. With several backends, it is the one whose interval of the cumulative weights
    /// contains `below(total)` of the generator seeded with `mix64(seed)`; this is independent of the pick. If the
    /// route names key sources and the request has a key, the key replaces the seed. Changed weights then move only the
    /// keys between the old and new ends of intervals.
    #[inline]
    pub(crate) fn backend<'a, H: Headers + ?Sized>(
        &'a self,
        request: &RequestView<'_, H>,
        seed: u64,
        own: &'a ServiceName,
    ) -> (&'a ServiceName, u32) {
        let position = match (&*self.split, self.cumulative_weights.last()) {
            ([_, _, ..], Some(total)) => {
                let seed = self.key_seed(request).unwrap_or(seed);
                let point = Generator::new(mix64(seed)).below(*total);
                self.cumulative_weights.partition_point(|&end| end <= point)
            }
            _ => 0,
        };
        let target = self.split.get(position).map_or(own, |backend| &backend.service);
        (target, self.first_route_backend + position as u32 + 1)
    }

    /// Returns the seed derived from a request's key, for routes with key sources.
    #[inline]
    pub(crate) fn key_seed<H: Headers + ?Sized>(&self, request: &RequestView<'_, H>) -> Option<u64> {
        let sources = self.actions.as_ref()?.split_key();
        // Salted, so that splits and region draws assign keys independently of each other.
        request_key::read_first(sources, request).map(|key| mix_pair(hash_key(key.0), SPLIT_SALT))
    }

    /// Returns the replacement for the backend `drawn` by [`backend`](Self::backend), if that backend is empty and
    /// the route redistributes the calls of empty backends; otherwise `None`.
    #[inline]
    pub(crate) fn redistributed<'a, H: Headers + ?Sized>(
        &'a self,
        request: &RequestView<'_, H>,
        seed: u64,
        drawn: &ServiceName,
        is_empty: impl Fn(&ServiceName) -> bool,
    ) -> Option<(&'a ServiceName, u32)> {
        match self.actions.as_ref()?.redistributes_empty() && is_empty(drawn) {
            true => self.draw_other(self.key_seed(request).unwrap_or(seed), is_empty),
            false => None,
        }
    }

    /// Draws one of the non-empty backends by their weights, with the second number of the generator. Thus only the
    /// calls of empty backends move, and calls with the same key stay together. Returns `None` if all backends are
    /// empty.
    #[inline(never)]
    fn draw_other(&self, seed: u64, is_empty: impl Fn(&ServiceName) -> bool) -> Option<(&ServiceName, u32)> {
        let mut draws = Generator::new(mix64(seed));
        draws.below(*self.cumulative_weights.last()?);
        let others = || self.split.iter().enumerate().filter(|(_, backend)| !is_empty(&backend.service));
        let total: u64 = others().map(|(_, backend)| u64::from(backend.weight)).sum();
        if total == 0 {
            return None;
        }
        let mut point = draws.below(total);
        let (position, backend) = others().find(|(_, backend)| {
            let rest = point.checked_sub(backend.weight.into());
            point = rest.unwrap_or(point);
            rest.is_none()
        })?;
        Some((&backend.service, self.first_route_backend + position as u32 + 1))
    }

    /// Describes a split: `splits calls: 90.0 % to shop/cart, 10.0 % to shop/canary`; `None` without a choice.
    pub(crate) fn describe_split(&self) -> Option<String> {
        let total = *self.cumulative_weights.last().filter(|total| **total > 0)?;
        if self.split.len() < 2 {
            return None;
        }
        let share = |Backend { service, weight }: &Backend| {
            let tenths = u64::from(*weight) * 1_000 / total;
            format!("{}.{} % to {service}", tenths / 10, tenths % 10)
        };
        let shares: Vec<_> = self.split.iter().map(share).collect();
        Some(format!("splits calls: {}", shares.join(", ")))
    }
}

#[cfg(test)]
mod tests;
