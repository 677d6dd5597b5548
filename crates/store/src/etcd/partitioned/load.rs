//! Reads all parts of a store at one revision.

use std::{sync::Arc, time::Duration};

use tokio::time::timeout;

use super::{
    super::{failure::Failure, follow::read_state, load::Scan},
    change,
    cluster::Cluster,
    core::{Core, Routes},
};
use crate::{Loaded, StoreError};

/// How long writes may be held until nothing is under way.
const QUIET: Duration = Duration::from_secs(1);
/// How often reading begins anew since a revision was compacted meanwhile.
const TRIES: u32 = 5;

impl Core {
    /// Everything at the newest revision.
    pub(super) async fn load(&self) -> Result<Loaded, StoreError> {
        let mut tries = 0;
        loop {
            tries += 1;
            match self.try_load().await {
                Err(StoreError::Refused { problem, .. })
                    if tries < TRIES && problem.contains("compacted") => {}
                loaded => return loaded,
            }
        }
    }

    async fn try_load(&self) -> Result<Loaded, StoreError> {
        let busy = |_| StoreError::Away {
            place: self.place(),
            problem: "a part of it has not answered a write yet".into(),
        };
        let (routes, newest, revisions) = timeout(QUIET, self.revisions()).await.map_err(busy)??;
        let mut entries = Vec::new();
        for (part, (cluster, revision)) in routes.clusters.iter().zip(revisions).enumerate() {
            let reading = |failure: Failure| failure.reading(&cluster.client.place);
            let mut scan = Scan::new(cluster.layout.records(), revision);
            while let Some(kvs) = scan.next(&cluster.client).await.map_err(reading)? {
                let found = kvs.into_iter().filter_map(|kv| change::entry(&cluster.layout, kv));
                // What a move left behind, or has not finished, is not there.
                entries.extend(found.filter(|(key, _)| routes.map.part(key) == part));
            }
        }
        entries.sort_unstable_by(|(before, _), (after, _)| before.cmp(after));
        Ok((newest, entries))
    }

    /// The newest number, and what every part counts then: while nothing is under way anywhere.
    async fn revisions(&self) -> Result<(Arc<Routes>, u64, Vec<u64>), StoreError> {
        loop {
            let (routes, mut gates) = (self.routes(), Vec::new());
            for cluster in &routes.clusters {
                gates.push(cluster.gate.clone().write_owned().await);
            }
            // A move may have ended before its gate was free.
            if !Arc::ptr_eq(&routes, &self.routes()) {
                continue;
            }
            let (newest, mut revisions) = (self.sequence.committed(), Vec::new());
            for cluster in &routes.clusters {
                revisions.push(revision(cluster).await.map_err(|f| f.reading(&cluster.client.place))?);
            }
            return Ok((routes, newest, revisions));
        }
    }
}

/// The newest revision of a part's cluster.
async fn revision(cluster: &Cluster) -> Result<u64, Failure> {
    Ok(read_state(&cluster.client, &cluster.layout).await?.revision)
}
