//! Table of the permissions that each served method requires of the calling program.

use fairmesh_rib::access::request_needs::{self as of, Needs};

/// Permission that a method requires of the calling program.
#[derive(Clone, Copy)]
pub(super) enum Access {
    /// The method needs no permission: it reads data that every local program may read, or its handler checks the
    /// caller.
    Everyone,
    /// The agent forwards the call in its own name, so the program must be entitled to what the request names. If the
    /// call carries a signed statement, the control plane judges its signer instead.
    Forwarded(fn(&[u8]) -> Needs),
    /// Like `Forwarded`, but the agent passes the content on in messages of its own, so a signed statement does not
    /// help.
    Answered(fn(&[u8]) -> Needs),
}

/// A gRPC method with its path and required permission.
pub(super) struct Method {
    pub(super) path: &'static str,
    pub(super) access: Access,
}

const fn row(path: &'static str, access: Access) -> Method {
    Method { path, access }
}

/// All methods that agents serve.
pub(super) static METHODS: &[Method] = &[
    row("/fairmesh.v1.Rib/Hello", Access::Everyone),
    // An agent accepts no record writes.
    row("/fairmesh.v1.Rib/Write", Access::Everyone),
    row("/fairmesh.v1.Rib/Read", Access::Everyone),
    row("/fairmesh.v1.Rib/Watchers", Access::Everyone),
    row("/fairmesh.v1.Signals/Report", Access::Answered(of::report_signals)),
    // A gateway signs this report itself: the agent forwards no such report in its own name.
    row("/fairmesh.v1.Signals/ReportGateway", Access::Forwarded(of::report_gateway)),
    row("/fairmesh.v1.Imbalance/Report", Access::Answered(of::report_usage)),
    // An agent has no data about imbalance.
    row("/fairmesh.v1.Imbalance/Read", Access::Everyone),
    row("/fairmesh.v1.Quota/Claim", Access::Forwarded(of::claim)),
    row("/fairmesh.v1.Registry/Register", Access::Forwarded(of::register)),
    row("/fairmesh.v1.Registry/Renew", Access::Forwarded(of::renew)),
    row("/fairmesh.v1.Registry/Report", Access::Forwarded(of::report)),
    row("/fairmesh.v1.Registry/Drain", Access::Forwarded(of::drain)),
    row("/fairmesh.v1.Registry/Deregister", Access::Forwarded(of::deregister)),
    row("/fairmesh.v1.Registry/GetShards", Access::Everyone),
    row("/fairmesh.v1.Registry/PutShards", Access::Forwarded(of::put_shards)),
    row("/fairmesh.v1.Registry/SplitShard", Access::Forwarded(of::split_shard)),
    row("/fairmesh.v1.Registry/MergeShards", Access::Forwarded(of::merge_shards)),
    row("/fairmesh.v1.Registry/MoveShard", Access::Forwarded(of::move_shard)),
    row("/fairmesh.v1.Registry/ListMoves", Access::Everyone),
    row("/fairmesh.v1.Registry/ReportShards", Access::Forwarded(of::report_shards)),
    row("/fairmesh.v1.Registry/ReportShardLoad", Access::Forwarded(of::report_shard_load)),
    row("/fairmesh.v1.Registry/ReadShardLoads", Access::Everyone),
    row("/fairmesh.v1.Registry/ProposeMoves", Access::Everyone),
    row("/fairmesh.v1.Registry/ReadPlaintextCallers", Access::Everyone),
    row("/fairmesh.v1.Workload/IssueWorkload", Access::Everyone),
    row("/SpiffeWorkloadAPI/FetchX509SVID", Access::Everyone),
    row("/SpiffeWorkloadAPI/FetchX509Bundles", Access::Everyone),
    row("/SpiffeWorkloadAPI/FetchJWTSVID", Access::Everyone),
    row("/SpiffeWorkloadAPI/FetchJWTBundles", Access::Everyone),
    row("/SpiffeWorkloadAPI/ValidateJWTSVID", Access::Everyone),
];

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs, path::Path};

    use super::*;

    /// The services that an agent serves, as listed in its routes.
    const SERVED: [&str; 7] = [
        "fairmesh.v1.Rib",
        "fairmesh.v1.Signals",
        "fairmesh.v1.Imbalance",
        "fairmesh.v1.Quota",
        "fairmesh.v1.Registry",
        "fairmesh.v1.Workload",
        "SpiffeWorkloadAPI",
    ];

    /// Paths of all methods of these services in the proto files.
    fn declared() -> BTreeSet<String> {
        let proto = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../proto");
        let mut paths = BTreeSet::new();
        for (folder, package) in [("fairmesh/v1", "fairmesh.v1."), ("spiffe/workload", "")] {
            for file in fs::read_dir(proto.join(folder)).unwrap() {
                let text = fs::read_to_string(file.unwrap().path()).unwrap();
                let mut service = "";
                for line in text.lines() {
                    let mut words = line.split([' ', '(']).filter(|word| !word.is_empty());
                    match (words.next(), words.next()) {
                        (Some("service"), Some(name)) => service = name,
                        (Some("rpc"), Some(name)) => {
                            paths.insert(format!("/{package}{service}/{name}"));
                        }
                        _ => {}
                    }
                }
            }
        }
        paths
    }

    #[test]
    fn every_served_agent_method_has_an_access_entry() {
        let listed: BTreeSet<_> = METHODS.iter().map(|method| method.path.to_owned()).collect();
        assert_eq!(listed.len(), METHODS.len(), "each once");
        let is_served =
            |path: &String| SERVED.iter().any(|service| path.starts_with(&format!("/{service}/")));
        let served: BTreeSet<_> = declared().into_iter().filter(is_served).collect();
        assert_eq!(listed, served);
    }
}
