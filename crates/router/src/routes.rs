use std::sync::Arc;

use fairmesh_model::{
    Label, Match, Route, ServiceName, Target, Timeouts,
    arith::{Generator, mix64},
};

use crate::{Bucket, Headers, RequestView, Treatment};

mod condition;
mod index;
mod texts;

use condition::{View, host_satisfies};
use index::Index;
pub(crate) use texts::{cookie, decoded, parameter};

/// Up to this many routes are simply tried in order: an index would cost more than it saves.
const SCAN_UP_TO: usize = 6;

/// The routes of a policy, compiled so that a call looks at few of them.
///
/// The index only leaves out routes that cannot match; those that remain are checked in full, in order. So a mistake in
/// the index could skip a route, which the tests compare against, but never match a wrong one.
#[derive(Debug)]
pub(crate) struct Routes {
    rules: Box<[Rule]>,
    /// Apart, since most services have few routes and every call reads this.
    index: Option<Box<Index>>,
}

/// One route, as the policy has it but for its actions, which the treatment holds: most routes have none, and they would be most of
/// what a service takes.
#[derive(Debug)]
pub(crate) struct Rule {
    pub(crate) name: Label,
    matches: Match,
    split: Box<[Target]>,
    pub(crate) class: Option<Label>,
    pub(crate) timeouts: Timeouts,
    pub(crate) idempotent: bool,
    /// Whether it is for this caller at all.
    is_ours: bool,
    /// Running totals of the split's weights.
    ends: Box<[u64]>,
    /// What else happens to its calls.
    pub(crate) treatment: Option<Arc<Treatment>>,
}

impl Routes {
    /// Compiles the routes of a valid policy; limits that stayed as they were `before` go on counting.
    pub(crate) fn compile(routes: &[Route], client: &str, before: Option<&Self>) -> Self {
        let same = |route: &Route| before?.rules.iter().find(|rule| rule.name == route.name);
        let rules: Box<[Rule]> = routes.iter().map(|route| Rule::new(route, client, same(route))).collect();
        let index = (rules.len() > SCAN_UP_TO).then(|| Box::new(Index::new(routes)));
        Self { rules, index }
    }

    /// The first route that matches, with its position.
    #[inline]
    pub(crate) fn find<H: Headers + ?Sized>(&self, request: &RequestView<'_, H>) -> Option<(usize, &Rule)> {
        if self.rules.is_empty() {
            return None;
        }
        let view = View::new(request);
        match &self.index {
            None => {
                self.rules.iter().enumerate().find(|(_, rule)| rule.is_ours && view.satisfies(&rule.matches))
            }
            Some(index) => index
                .find(&view, |i| self.rules[i].is_ours && view.satisfies(&self.rules[i].matches))
                .map(|i| (i, &self.rules[i])),
        }
    }

    /// The limits of the routes for this caller, with their names.
    pub(crate) fn buckets(&self) -> impl Iterator<Item = (&str, &Arc<Bucket>)> {
        let ours = self.rules.iter().filter(|rule| rule.is_ours);
        ours.filter_map(|rule| Some((rule.name.as_str(), rule.treatment.as_ref()?.bucket()?)))
    }

    /// Whether a route of this caller's names this host in its condition, itself or by a wildcard.
    pub(crate) fn name_host(&self, host: &str) -> bool {
        let mut hosts = self.rules.iter().filter(|rule| rule.is_ours).flat_map(|rule| &rule.matches.hosts);
        hosts.any(|wanted| host_satisfies(host, wanted))
    }

    pub(crate) fn len(&self) -> usize {
        self.rules.len()
    }
}

impl Rule {
    /// Whether it names CONNECT among its methods; a rule for any method does not.
    pub(crate) fn names_connect(&self) -> bool {
        self.matches.methods.iter().any(|method| method == "CONNECT")
    }

    fn new(route: &Route, client: &str, before: Option<&Self>) -> Self {
        let mut total = 0;
        let ends = route.split.iter().map(|target| {
            total += u64::from(target.weight);
            total
        });
        let clients = &route.matches.clients;
        let is_ours = clients.is_empty() || clients.iter().any(|wanted| wanted.matches(client));
        let before = before.and_then(|before| before.treatment.as_deref());
        let treatment = Treatment::compile(&route.actions, &route.matches, before).map(Arc::new);
        let Route { name, matches, split, class, timeouts, idempotent, actions: _ } = route;
        Self {
            ends: ends.collect(),
            name: name.clone(),
            matches: matches.clone(),
            split: split.as_slice().into(),
            class: class.clone(),
            timeouts: *timeouts,
            idempotent: *idempotent,
            treatment,
            is_ours,
        }
    }

    /// The arm of the split for this seed, or `None` where the route has no split: the one whose stretch of the running
    /// totals holds `below(total)` of the generator that starts at `mix64(seed)`, a stream apart from the pick's.
    #[inline]
    pub(crate) fn arm(&self, seed: u64) -> Option<&ServiceName> {
        let target = match &*self.split {
            [] => return None,
            [only] => only,
            split => {
                let point = Generator::new(mix64(seed)).below(*self.ends.last()?);
                &split[self.ends.partition_point(|&end| end <= point)]
            }
        };
        Some(&target.service)
    }
}

#[cfg(test)]
mod tests;
