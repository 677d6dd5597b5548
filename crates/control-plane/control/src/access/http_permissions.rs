//! What each HTTP route requires of its caller.

/// The right that an HTTP route requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageAccess {
    /// No right: a page for monitoring.
    Everyone,
    /// The right to act for the instances in the body.
    Serve,
    /// The right to read the service in the path.
    View,
    /// The right to change the shard map of the service in the path.
    Operate,
    /// The right to act for the instance in the body, of the service in the path.
    ServeShards,
    /// The right to read the service in the query, and its earlier values; without a service, all services.
    ViewHistoryQueried,
    /// The right to read the tenant in the query; without a tenant, all tenants.
    ViewTenantQueried,
    /// The right to read the service in the path, its callers and its earlier values.
    ViewHistory,
    /// The right to read all tenants.
    ViewAll,
    /// The right to operate the whole mesh.
    Administer,
}

/// All HTTP routes: method, path and required right.
pub(crate) static ROUTES: &[(&str, &str, PageAccess)] = &[
    ("GET", "/healthz", PageAccess::Everyone),
    ("GET", "/readyz", PageAccess::Everyone),
    ("GET", "/metrics", PageAccess::Everyone),
    ("POST", "/v1/register", PageAccess::Serve),
    ("POST", "/v1/renew", PageAccess::Serve),
    ("POST", "/v1/report", PageAccess::Serve),
    ("POST", "/v1/drain", PageAccess::Serve),
    ("POST", "/v1/deregister", PageAccess::Serve),
    ("GET", "/v1/shards/{tenant}/{service}", PageAccess::View),
    ("PUT", "/v1/shards/{tenant}/{service}", PageAccess::Operate),
    ("POST", "/v1/shards/{tenant}/{service}/split", PageAccess::Operate),
    ("POST", "/v1/shards/{tenant}/{service}/merge", PageAccess::Operate),
    ("GET", "/v1/shards/{tenant}/{service}/moves", PageAccess::ViewHistory),
    ("POST", "/v1/shards/{tenant}/{service}/moves", PageAccess::Operate),
    ("GET", "/v1/shards/{tenant}/{service}/loads", PageAccess::ViewHistory),
    ("GET", "/v1/shards/{tenant}/{service}/plan", PageAccess::ViewHistory),
    ("POST", "/v1/shards/{tenant}/{service}/ready", PageAccess::ServeShards),
    ("GET", "/v1/imbalance", PageAccess::ViewHistoryQueried),
    ("GET", "/v1/trust-bundle", PageAccess::Everyone),
    ("GET", "/ui", PageAccess::Everyone),
    ("GET", "/ui/", PageAccess::Everyone),
    ("GET", "/ui/{file}", PageAccess::Everyone),
    ("GET", "/ui/api/live", PageAccess::ViewTenantQueried),
    ("GET", "/ui/api/live/{tenant}/{service}", PageAccess::ViewHistory),
    ("GET", "/ui/api/history/{tenant}/{service}", PageAccess::ViewHistory),
    ("GET", "/ui/api/why/{tenant}/{service}", PageAccess::ViewHistory),
    ("GET", "/ui/api/planner/{tenant}/{service}", PageAccess::ViewHistory),
    ("GET", "/ui/api/requests/{tenant}/{service}", PageAccess::ViewHistory),
    ("GET", "/ui/api/regions", PageAccess::ViewTenantQueried),
    ("GET", "/ui/api/forecast/{region}", PageAccess::ViewAll),
    ("GET", "/ui/api/imbalance", PageAccess::ViewTenantQueried),
    ("GET", "/ui/api/security", PageAccess::ViewTenantQueried),
    ("GET", "/ui/api/audit/{log}", PageAccess::Administer),
    ("GET", "/ui/api/fleet", PageAccess::ViewAll),
    ("GET", "/ui/api/traces", PageAccess::ViewTenantQueried),
    ("GET", "/ui/api/trace/{id}", PageAccess::ViewTenantQueried),
];

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs, path::Path};

    use super::*;

    #[test]
    fn every_served_http_route_has_an_access_entry() {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let registry = sources.join("../../../state/registry/src/http.rs");
        let pages = sources.join("../../../observe/pages/src/page_router.rs");
        let web = sources.join("../../../observe/web/src");
        let web = ["api.rs", "page_files.rs"].map(|file| web.join(file));
        let files =
            [pages, sources.join("imbalance/http.rs"), sources.join("identity/bundle_page.rs"), registry];
        let files = files.into_iter().chain(web);
        let mut routed = BTreeSet::new();
        for text in files.map(|file| fs::read_to_string(file).unwrap()) {
            for route in text.split(".route(").skip(1) {
                let route = &route[..route.find("\n").unwrap_or(route.len())];
                let path = route.split('"').nth(1).unwrap().to_owned();
                for (call, method) in
                    [("get(", "GET"), ("post(", "POST"), ("put(", "PUT"), ("delete(", "DELETE")]
                {
                    if route.contains(call) {
                        routed.insert((method.to_owned(), path.clone()));
                    }
                }
            }
        }
        let listed: BTreeSet<_> =
            ROUTES.iter().map(|(method, path, _)| (method.to_string(), path.to_string())).collect();
        assert_eq!(listed, routed);
    }
}
