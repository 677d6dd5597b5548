//! Limits on the routes of a policy, since each caller, proxy and lookaside compiles all of them.

use std::collections::BTreeSet;

use super::{Match, PathMatch, Pattern, Route, TextMatch};
use crate::Invalid;

/// Maximum number of routes in a policy.
pub const MAX_ROUTES: usize = 2_000;
/// Maximum number of clients, hosts, methods, headers and parameters in all route conditions of a policy together.
pub const MAX_CONDITIONS: usize = 10_000;
/// Maximum memory of a policy's compiled regular expressions, in bytes. Equal expressions count once. `/users/[0-9]+`
/// takes some thousands of bytes; large repetition counts take hundreds of thousands.
pub const MAX_EXPRESSION_BYTES: usize = 16 << 20;

/// Totals of the routes collected so far.
#[derive(Default)]
struct Totals {
    conditions: usize,
    expressions: BTreeSet<String>,
    bytes: usize,
}

/// Collects a policy's routes, up to the first error or the first route that exceeds a limit. Later routes are not
/// compiled.
///
/// # Errors
/// Errors of `routes`, or the exceeded limit with the first route that exceeds it.
pub fn within_bounds(routes: impl Iterator<Item = Result<Route, Invalid>>) -> Result<Vec<Route>, Invalid> {
    let (mut gathered, mut totals) = (Vec::new(), Totals::default());
    for (i, route) in routes.enumerate() {
        if i == MAX_ROUTES {
            let problem = format!("there are more than {MAX_ROUTES} routes");
            let hint = "merge routes, such as by a prefix, a template or several hosts, or split the service";
            return Err(Invalid::new(format!("routes[{i}]"), problem, hint));
        }
        let route = route?;
        totals.add(&route).map_err(|e| e.within(format!("routes[{i}].match")))?;
        gathered.push(route);
    }
    Ok(gathered)
}

impl Totals {
    fn add(&mut self, route: &Route) -> Result<(), Invalid> {
        let Match { clients, hosts, path, methods, headers, query, grpc: _ } = &route.matches;
        self.conditions += clients.len() + hosts.len() + methods.len() + headers.len() + query.len();
        if self.conditions > MAX_CONDITIONS {
            let problem = format!(
                "up to here the routes name {} clients, hosts, methods, headers and parameters",
                self.conditions
            );
            let hint = format!("keep a policy to {MAX_CONDITIONS}; use suffixes such as *.example.org");
            return Err(Invalid::new("", problem, hint));
        }
        let of_path = match path {
            Some(PathMatch::Regex(pattern)) => Some(("path.regex".to_owned(), pattern)),
            _ => None,
        };
        let headers = headers.iter().map(|header| &header.value).enumerate();
        let headers = headers.map(|(i, value)| (format!("headers[{i}].regex"), value));
        let query = query.iter().map(|query| &query.value).enumerate();
        let query = query.map(|(i, value)| (format!("query[{i}].regex"), value));
        let of_texts = headers.chain(query).filter_map(|(at, value)| match value {
            TextMatch::Regex(pattern) => Some((at, pattern)),
            _ => None,
        });
        of_path.into_iter().chain(of_texts).try_for_each(|(at, pattern)| self.add_expression(at, pattern))
    }

    /// Counts an expression. `at` is its path within the route's conditions.
    fn add_expression(&mut self, at: String, pattern: &Pattern) -> Result<(), Invalid> {
        if self.expressions.insert(pattern.as_str().to_owned()) {
            self.bytes += pattern.memory();
        }
        if self.bytes <= MAX_EXPRESSION_BYTES {
            return Ok(());
        }
        let problem = format!(
            "up to here the expressions of the policy take {} KiB when compiled, {} of them this one",
            self.bytes >> 10,
            pattern.memory() >> 10
        );
        let hint = format!(
            "keep a policy to {} KiB: write smaller counts of repetition, fewer alternatives, or templates such as \
             /users/{{id}}",
            MAX_EXPRESSION_BYTES >> 10
        );
        Err(Invalid::new(at, problem, hint))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HostMatch;

    fn route(i: usize, matches: Match) -> Route {
        Route { matches, ..Route::new(format!("r{i}").parse().unwrap()) }
    }

    fn regex(text: String) -> Match {
        Match { path: Some(PathMatch::Regex(Pattern::new(text).unwrap())), ..Match::default() }
    }

    fn refused(routes: impl Iterator<Item = Route>) -> (usize, Invalid) {
        let mut taken = 0;
        let counted = routes.inspect(|_| taken += 1).map(Ok);
        let refusal = within_bounds(counted).unwrap_err();
        (taken, refusal)
    }

    #[test]
    fn routes_beyond_cost_limit_are_not_compiled() {
        let costly = |i| route(i, regex(format!("/{i}/[a-z]{{1,900}}x")));
        let (compiled, refusal) = refused((0..MAX_ROUTES).map(costly));
        assert!(refusal.field.ends_with(".match.path.regex"), "{refusal}");
        assert!(refusal.field.starts_with(&format!("routes[{}]", compiled - 1)), "{refusal}");
        assert!(compiled < 400, "{compiled} were compiled");
        let (_, refusal) = refused((0..=MAX_ROUTES).map(|i| route(i, Match::default())));
        assert_eq!(refusal.field, format!("routes[{MAX_ROUTES}]"));
        let many = |i| {
            let hosts = vec![HostMatch::Exact("a.b".into()); 101];
            route(i, Match { hosts, ..Match::default() })
        };
        assert_eq!(refused((0..100).map(many)).1.field, "routes[99].match");
    }

    #[test]
    fn ordinary_and_equal_route_expressions_fit_cost_limit() {
        let ordinary = (0..MAX_ROUTES).map(|i| route(i, regex(format!("/v{i}/users/[0-9]+(/.*)?"))));
        assert_eq!(within_bounds(ordinary.map(Ok)).unwrap().len(), MAX_ROUTES);
        let costly = || regex("/[a-z]{1,900}x".to_owned());
        assert!(within_bounds((0..500).map(|i| Ok(route(i, costly())))).is_ok());
    }
}
