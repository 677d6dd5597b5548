//! The permissions that each gRPC method requires.

use super::request_needs::{self as of, Needs};

/// The permissions that a method requires.
#[derive(Clone, Copy, Debug)]
pub enum MethodAccess {
    /// No permission: the response is public, or the message itself proves its sender.
    Everyone,
    /// Only the control plane's own user on its machine may call the method. The handler checks this, independently
    /// of records.
    OwnUser,
    /// Permission to read each prefix. `rib::server` checks it, as for watches.
    Prefixes,
    /// No permission: the response depends only on the caller.
    Caller,
    /// Permissions for the objects named in the request.
    Of(fn(&[u8]) -> Needs),
}

/// A gRPC method.
#[derive(Clone, Copy, Debug)]
pub struct Method {
    /// Path of the method, `/package.Service/Method`.
    pub path: &'static str,
    /// Permissions that the method requires.
    pub access: MethodAccess,
}

const fn row(path: &'static str, access: MethodAccess) -> Method {
    Method { path, access }
}

/// All methods that control planes serve.
pub static METHODS: &[Method] = &[
    row("/fairmesh.v1.Rib/Hello", MethodAccess::Everyone),
    row("/fairmesh.v1.Rib/Write", MethodAccess::Of(of::write)),
    row("/fairmesh.v1.Rib/Read", MethodAccess::Prefixes),
    row("/fairmesh.v1.Rib/Watchers", MethodAccess::Prefixes),
    row("/fairmesh.v1.Admin/Apply", MethodAccess::Of(of::apply)),
    row("/fairmesh.v1.Admin/GetHistory", MethodAccess::Of(of::get_history)),
    row("/fairmesh.v1.Admin/Rollback", MethodAccess::Of(of::rollback)),
    row("/fairmesh.v1.Admin/SplitStore", MethodAccess::Of(of::administration)),
    row("/fairmesh.v1.Admin/ReadAudit", MethodAccess::Of(of::administration)),
    row("/fairmesh.v1.Admin/DescribeCaller", MethodAccess::Caller),
    row("/fairmesh.v1.Admin/ListControllers", MethodAccess::Of(of::view_all)),
    row("/fairmesh.v1.Admin/ReadCalls", MethodAccess::Of(of::read_calls)),
    row("/fairmesh.v1.Admin/ReadCost", MethodAccess::Of(of::read_cost)),
    row("/fairmesh.v1.Admin/ReadTraces", MethodAccess::Of(of::read_traces)),
    row("/fairmesh.v1.Admin/ReadProbes", MethodAccess::Of(of::view_all)),
    row("/fairmesh.v1.Admin/ReadGateway", MethodAccess::Of(of::view_all)),
    row("/fairmesh.v1.Checker/Campaign", MethodAccess::Of(of::campaign)),
    row("/fairmesh.v1.Checker/Judge", MethodAccess::Of(of::judge)),
    row("/fairmesh.v1.Checker/ReportDistances", MethodAccess::Of(of::report_distances)),
    row("/fairmesh.v1.Checker/ReportProbes", MethodAccess::Of(of::report_probes)),
    row("/fairmesh.v1.Identity/Join", MethodAccess::Everyone),
    row("/fairmesh.v1.Identity/Issue", MethodAccess::Everyone),
    row("/fairmesh.v1.Authority/DescribeAuthority", MethodAccess::Everyone),
    row("/fairmesh.v1.Authority/CreateToken", MethodAccess::OwnUser),
    row("/fairmesh.v1.Authority/RotateAuthority", MethodAccess::OwnUser),
    row("/fairmesh.v1.Authority/RetireRoot", MethodAccess::OwnUser),
    row("/fairmesh.v1.Imbalance/Report", MethodAccess::Of(of::report_usage)),
    row("/fairmesh.v1.Imbalance/Read", MethodAccess::Of(of::read_imbalance)),
    row("/fairmesh.v1.Quota/Claim", MethodAccess::Of(of::claim)),
    row("/fairmesh.v1.Registry/Register", MethodAccess::Of(of::register)),
    row("/fairmesh.v1.Registry/Renew", MethodAccess::Of(of::renew)),
    row("/fairmesh.v1.Registry/Report", MethodAccess::Of(of::report)),
    row("/fairmesh.v1.Registry/Drain", MethodAccess::Of(of::drain)),
    row("/fairmesh.v1.Registry/Deregister", MethodAccess::Of(of::deregister)),
    row("/fairmesh.v1.Registry/GetShards", MethodAccess::Of(of::get_shards)),
    row("/fairmesh.v1.Registry/PutShards", MethodAccess::Of(of::put_shards)),
    row("/fairmesh.v1.Registry/SplitShard", MethodAccess::Of(of::split_shard)),
    row("/fairmesh.v1.Registry/MergeShards", MethodAccess::Of(of::merge_shards)),
    row("/fairmesh.v1.Registry/MoveShard", MethodAccess::Of(of::move_shard)),
    row("/fairmesh.v1.Registry/ListMoves", MethodAccess::Of(of::list_moves)),
    row("/fairmesh.v1.Registry/ReportShards", MethodAccess::Of(of::report_shards)),
    row("/fairmesh.v1.Registry/ReportShardLoad", MethodAccess::Of(of::report_shard_load)),
    row("/fairmesh.v1.Registry/ReadShardLoads", MethodAccess::Of(of::read_shard_loads)),
    row("/fairmesh.v1.Registry/ProposeMoves", MethodAccess::Of(of::propose_moves)),
    row("/fairmesh.v1.Registry/ReadPlaintextCallers", MethodAccess::Of(of::read_plaintext_callers)),
    row("/fairmesh.v1.Signals/Report", MethodAccess::Of(of::report_signals)),
    row("/fairmesh.v1.Signals/ReportGateway", MethodAccess::Of(of::report_gateway)),
    row("/fairmesh.v1.TrafficPlanner/Status", MethodAccess::Of(of::traffic_status)),
    row("/fairmesh.v1.TrafficPlanner/ForecastDrain", MethodAccess::Of(of::view_all)),
    row("/fairmesh.v1.TrafficPlanner/DrainRegion", MethodAccess::Of(of::administration)),
    row("/fairmesh.v1.TrafficPlanner/Drains", MethodAccess::Of(of::view_all)),
    row("/fairmesh.v1.TrafficPlanner/Calls", MethodAccess::Of(of::traffic_calls)),
    row("/fairmesh.v1.TrafficPlanner/Graph", MethodAccess::Of(of::view_all)),
    row("/fairmesh.v1.TrafficPlanner/WhatIf", MethodAccess::Of(of::view_all)),
];

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs, path::Path};

    use super::*;

    /// Returns the paths of all methods declared in the .proto files.
    fn declared() -> BTreeSet<String> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../proto/fairmesh/v1");
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
    fn every_grpc_method_has_an_access_entry() {
        let mut listed: BTreeSet<_> = METHODS.iter().map(|method| method.path.to_owned()).collect();
        assert_eq!(listed.len(), METHODS.len(), "each once");
        // Agents serve this method to programs on their machine.
        listed.insert("/fairmesh.v1.Workload/IssueWorkload".into());
        assert_eq!(listed, declared());
    }

    #[test]
    fn every_grpc_method_has_row_in_table_of_security_page() {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/security.md");
        let page = fs::read_to_string(page).unwrap();
        let (_, table) = page.split_once("### Where calls are judged").unwrap();
        let rows = table
            .lines()
            .skip_while(|line| !line.starts_with("| `"))
            .take_while(|line| line.starts_with("| `"));
        let cells: Vec<Vec<&str>> =
            rows.map(|row| row.trim_matches('|').split('|').map(str::trim).collect()).collect();
        assert_eq!(cells.len(), METHODS.len());
        for (method, cells) in METHODS.iter().zip(cells) {
            assert_eq!(
                format!("/fairmesh.v1.{}", cells[0].trim_matches('`')),
                method.path,
                "in the order of the code"
            );
            let is_judged = matches!(method.access, MethodAccess::Of(_));
            assert_eq!(cells[2] == "judged", is_judged, "{}", method.path);
            let forwarded = ["Registry/", "Signals/", "Imbalance/", "Quota/", "Checker/"];
            let is_forwarded =
                forwarded.iter().any(|service| cells[0].trim_matches('`').starts_with(service));
            assert_eq!(cells[3].starts_with("judged, then"), is_forwarded, "{}", method.path);
        }
    }
}
