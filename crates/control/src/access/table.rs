//! What every method and every route needs of its caller.

use super::{needs::Need, requests as of};
use tonic::Status;

/// What a method needs.
pub(crate) enum Access {
    /// Nothing: it tells nothing that others may not know, or its message proves who sends it.
    Everyone,
    /// To be the user of the control plane on its machine; the handler decides, without records.
    OwnUser,
    /// To be permitted each prefix; `rib::server` decides, as for watches.
    Prefixes,
    /// Nothing; the handler is told who calls, and tells nothing but that.
    Caller,
    /// What the request names.
    Of(fn(&[u8]) -> Result<Vec<Need>, Status>),
}

/// A method of gRPC by its path.
pub(crate) struct Method {
    pub(crate) path: &'static str,
    pub(crate) access: Access,
}

const fn row(path: &'static str, access: Access) -> Method {
    Method { path, access }
}

/// All methods that control planes serve.
pub(crate) static METHODS: &[Method] = &[
    row("/fairmesh.v1.Rib/Hello", Access::Everyone),
    row("/fairmesh.v1.Rib/Write", Access::Of(of::write)),
    row("/fairmesh.v1.Rib/Read", Access::Prefixes),
    row("/fairmesh.v1.Rib/Watchers", Access::Prefixes),
    row("/fairmesh.v1.Admin/Apply", Access::Of(of::apply)),
    row("/fairmesh.v1.Admin/GetHistory", Access::Of(of::get_history)),
    row("/fairmesh.v1.Admin/Rollback", Access::Of(of::rollback)),
    row("/fairmesh.v1.Admin/SplitStore", Access::Of(of::administration)),
    row("/fairmesh.v1.Admin/ReadAudit", Access::Of(of::administration)),
    row("/fairmesh.v1.Admin/DescribeCaller", Access::Caller),
    row("/fairmesh.v1.Checker/Campaign", Access::Of(of::campaign)),
    row("/fairmesh.v1.Checker/Judge", Access::Of(of::judge)),
    row("/fairmesh.v1.Checker/ReportDistances", Access::Of(of::report_distances)),
    row("/fairmesh.v1.Identity/Join", Access::Everyone),
    row("/fairmesh.v1.Identity/Issue", Access::Everyone),
    row("/fairmesh.v1.Authority/DescribeAuthority", Access::Everyone),
    row("/fairmesh.v1.Authority/CreateToken", Access::OwnUser),
    row("/fairmesh.v1.Authority/RotateAuthority", Access::OwnUser),
    row("/fairmesh.v1.Authority/RetireRoot", Access::OwnUser),
    row("/fairmesh.v1.Imbalance/Report", Access::Of(of::report_usage)),
    row("/fairmesh.v1.Imbalance/Read", Access::Of(of::read_imbalance)),
    row("/fairmesh.v1.Quota/Claim", Access::Of(of::claim)),
    row("/fairmesh.v1.Registry/Register", Access::Of(of::register)),
    row("/fairmesh.v1.Registry/Renew", Access::Of(of::renew)),
    row("/fairmesh.v1.Registry/Report", Access::Of(of::report)),
    row("/fairmesh.v1.Registry/Drain", Access::Of(of::drain)),
    row("/fairmesh.v1.Registry/Deregister", Access::Of(of::deregister)),
    row("/fairmesh.v1.Registry/GetShards", Access::Of(of::get_shards)),
    row("/fairmesh.v1.Registry/PutShards", Access::Of(of::put_shards)),
    row("/fairmesh.v1.Registry/SplitShard", Access::Of(of::split_shard)),
    row("/fairmesh.v1.Registry/MergeShards", Access::Of(of::merge_shards)),
    row("/fairmesh.v1.Registry/MoveShard", Access::Of(of::move_shard)),
    row("/fairmesh.v1.Registry/ListMoves", Access::Of(of::list_moves)),
    row("/fairmesh.v1.Registry/ReportShards", Access::Of(of::report_shards)),
    row("/fairmesh.v1.Registry/ReportShardLoad", Access::Of(of::report_shard_load)),
    row("/fairmesh.v1.Registry/ReadShardLoads", Access::Of(of::read_shard_loads)),
    row("/fairmesh.v1.Registry/ProposeMoves", Access::Of(of::propose_moves)),
    row("/fairmesh.v1.Registry/ReadPlaintextCallers", Access::Of(of::read_plaintext_callers)),
    row("/fairmesh.v1.TrafficPlanner/Status", Access::Of(of::traffic_status)),
    row("/fairmesh.v1.TrafficPlanner/ForecastDrain", Access::Of(of::view_all)),
    row("/fairmesh.v1.TrafficPlanner/DrainRegion", Access::Of(of::administration)),
    row("/fairmesh.v1.TrafficPlanner/Drains", Access::Of(of::view_all)),
    row("/fairmesh.v1.TrafficPlanner/Calls", Access::Of(of::traffic_calls)),
];

/// What a route of HTTP needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageAccess {
    /// Nothing: pages for monitoring.
    Everyone,
    /// To act for the instances in the body.
    Serve,
    /// To read the service in the path.
    View,
    /// To change the shard map of the service in the path.
    Operate,
    /// To act for the instance in the body, of the service in the path.
    ServeShards,
    /// To read the service of the query, or all.
    ViewQueried,
}

/// All routes of HTTP, as method, path and need.
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
    ("GET", "/v1/shards/{tenant}/{service}/moves", PageAccess::View),
    ("POST", "/v1/shards/{tenant}/{service}/moves", PageAccess::Operate),
    ("GET", "/v1/shards/{tenant}/{service}/loads", PageAccess::View),
    ("GET", "/v1/shards/{tenant}/{service}/plan", PageAccess::View),
    ("POST", "/v1/shards/{tenant}/{service}/ready", PageAccess::ServeShards),
    ("GET", "/v1/imbalance", PageAccess::ViewQueried),
];

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs, path::Path};

    use super::*;

    /// The methods of the services in the protocol's files, by path.
    fn declared() -> BTreeSet<String> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../proto/fairmesh/v1");
        let mut paths = BTreeSet::new();
        for file in fs::read_dir(folder).unwrap() {
            let text = fs::read_to_string(file.unwrap().path()).unwrap();
            let mut service = "";
            for line in text.lines() {
                let mut words = line.split([' ', '(']).filter(|word| !word.is_empty());
                match (words.next(), words.next()) {
                    (Some("service"), Some(name)) => service = name,
                    (Some("rpc"), Some(name)) => drop(paths.insert(format!("/fairmesh.v1.{service}/{name}"))),
                    _ => {}
                }
            }
        }
        paths
    }

    #[test]
    fn every_method_of_the_protocol_says_what_it_needs() {
        let mut listed: BTreeSet<_> = METHODS.iter().map(|method| method.path.to_owned()).collect();
        assert_eq!(listed.len(), METHODS.len(), "each once");
        // Served by agents, to programs of their machine.
        listed.insert("/fairmesh.v1.Workload/IssueWorkload".into());
        assert_eq!(listed, declared());
    }

    #[test]
    fn every_route_in_the_sources_says_what_it_needs() {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let registry = sources.join("../../registry/src/http.rs");
        let files = [sources.join("http.rs"), sources.join("imbalance/http.rs"), registry];
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
