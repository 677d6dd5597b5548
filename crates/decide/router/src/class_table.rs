use fairmesh_model::{Label, Policy};

use crate::{Headers, RequestView, routes::Routes};

/// The routes of a policy, for a server that looks up the traffic class of a call it received.
///
/// The server finds the route as callers do, so a class set by the caller's route is found without a header. A header
/// with the class was rejected: callers outside the mesh could set any class, and calls with such a header could not be
/// forwarded from their read buffers.
///
/// A server does not know the client ID of its callers, so routes for certain clients match none here. Routes of
/// another service that split calls to this one, or that rewrite the path, are not seen either.
#[derive(Clone, Debug)]
pub struct ClassTable(Routes);

impl ClassTable {
    /// Compiles the routes of a valid policy. Returns `None` if no route sets a class.
    pub fn compile(policy: &Policy) -> Option<Self> {
        let has_class = policy.routes.iter().any(|route| route.class.is_some());
        has_class.then(|| Self(Routes::compile(&policy.routes, "", None)))
    }

    /// Returns the class of a call.
    #[inline]
    pub fn find<H: Headers + ?Sized>(&self, request: &RequestView<'_, H>) -> Option<&Label> {
        self.0.find(request)?.1.class.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use fairmesh_model::{ClientMatch, Match, PathMatch, Route};

    use super::*;

    #[test]
    fn call_class_comes_from_first_matching_route_for_all_clients() {
        let route = |name: &str, prefix: &str, class: Option<&str>, client: Option<&str>| Route {
            matches: Match {
                path: Some(PathMatch::Prefix(prefix.into())),
                clients: client.map(|client| ClientMatch::new(client).unwrap()).into_iter().collect(),
                ..Match::default()
            },
            class: class.map(|class| class.parse().unwrap()),
            ..Route::new(name.parse().unwrap())
        };
        let routes = vec![
            route("batch", "/a", Some("batch"), Some("batch-*")),
            route("a", "/a", Some("bulk"), None),
            route("all", "/", None, None),
        ];
        let table = ClassTable::compile(&Policy { routes: routes.clone(), ..Policy::default() }).unwrap();
        let class = |path| {
            let view = RequestView { host: "cart.shop", path, method: "GET", headers: &(), grpc: false };
            table.find(&view).map(ToString::to_string)
        };
        assert_eq!([class("/a/1"), class("/b")], [Some("bulk".to_owned()), None]);
        assert!(ClassTable::compile(&Policy { routes: routes[2..].to_vec(), ..Policy::default() }).is_none());
    }
}
