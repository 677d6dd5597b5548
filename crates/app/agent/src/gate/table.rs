//! What every method that an agent serves needs of the calling program.

use fairmesh_rib::access::requests::{self as of, Needs};

/// What a method needs of the program that calls it.
#[derive(Clone, Copy)]
pub(super) enum Access {
    /// Nothing: it reads what every program of the machine may read, or its handler asks who calls.
    Everyone,
    /// The agent forwards it in its own name, so the program has to be what the request names. A call with a statement is judged
    /// by its signer instead.
    Forwarded(fn(&[u8]) -> Needs),
    /// The same, and the agent passes on the content in messages of its own, so that no statement counts.
    Answered(fn(&[u8]) -> Needs),
}

/// A method of gRPC by its path.
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
    // An agent takes no writes of records.
    row("/fairmesh.v1.Rib/Write", Access::Everyone),
    row("/fairmesh.v1.Rib/Read", Access::Everyone),
    row("/fairmesh.v1.Rib/Watchers", Access::Everyone),
    row("/fairmesh.v1.Signals/Report", Access::Answered(of::report_signals)),
    // A gateway states it itself: the agent passes on no such report in its own name.
    row("/fairmesh.v1.Signals/ReportGateway", Access::Forwarded(of::report_gateway)),
    row("/fairmesh.v1.Imbalance/Report", Access::Answered(of::report_usage)),
    // An agent knows of no imbalance.
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

    /// The services that an agent serves, as its routes list them.
    const SERVED: [&str; 7] = [
        "fairmesh.v1.Rib",
        "fairmesh.v1.Signals",
        "fairmesh.v1.Imbalance",
        "fairmesh.v1.Quota",
        "fairmesh.v1.Registry",
        "fairmesh.v1.Workload",
        "SpiffeWorkloadAPI",
    ];

    /// The methods of the services in the protocol's files, by path.
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
    fn every_agent_method_declares_its_needs() {
        let listed: BTreeSet<_> = METHODS.iter().map(|method| method.path.to_owned()).collect();
        assert_eq!(listed.len(), METHODS.len(), "each once");
        let is_served =
            |path: &String| SERVED.iter().any(|service| path.starts_with(&format!("/{service}/")));
        let served: BTreeSet<_> = declared().into_iter().filter(is_served).collect();
        assert_eq!(listed, served);
    }
}
