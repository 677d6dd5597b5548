//! Walks the replica tree: queries the watchers of the control plane, then of every replica among them, and so on.

use std::{collections::BTreeSet, time::Duration};

use fairmesh_console::{
    connect::{SOFTWARE, transport_to},
    failure::Failure,
};
use fairmesh_model::{Cursor, Prefix, StoreId};
use fairmesh_rib::{PeerInfo, PeerKind};
use fairmesh_wire::{
    handshake::{self, Connection},
    transport::Address,
    v1::{self, WatchersRequest, WatchersResponse},
};
use futures_util::{StreamExt, stream};
use serde::Serialize;
use tokio::time::timeout;

/// Maximum number of replicas queried concurrently.
const MAX_CONCURRENT_QUERIES: usize = 32;
/// Timeout of one query.
const QUERY_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum depth of the tree, so that replicas that follow each other in a cycle are not queried forever.
const MAX_LAYERS: usize = 16;

/// Servers and watchers, as far as they could be queried.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Tree {
    /// The store of the revisions; absent if the first server is a replica that has none yet.
    pub(super) store: Option<String>,
    /// Revision of the first server, to which all others are compared.
    pub(super) revision: u64,
    pub(super) servers: Vec<Server>,
    pub(super) watchers: Vec<WatcherInfo>,
}

/// The control plane or a replica.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Server {
    pub(super) name: String,
    pub(super) region: Option<String>,
    /// The server that it follows; absent for the first.
    pub(super) follows: Option<String>,
    /// Revision of the process; absent if the query failed.
    pub(super) revision: Option<u64>,
    /// Number of revisions that it is behind.
    pub(super) lag: Option<u64>,
    /// Maximum age of its data; 0 while it is connected to the control plane.
    pub(super) age_ms: u64,
    pub(super) watchers: usize,
    /// Why it could not be queried.
    pub(super) problem: Option<String>,
}

/// A watcher.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct WatcherInfo {
    pub(super) name: String,
    pub(super) identity: String,
    /// `replica`, `agent` or `program`.
    pub(super) kind: &'static str,
    pub(super) region: Option<String>,
    /// Release of the process; absent for programs and older releases.
    pub(super) version: Option<String>,
    pub(super) follows: String,
    /// The revision that this watcher and everything below it have applied. Absent if it follows another store.
    pub(super) applied: Option<u64>,
    /// Number of revisions that it is behind.
    pub(super) lag: Option<u64>,
}

/// A replica to query.
#[derive(Clone, Debug)]
struct PendingServer {
    name: String,
    region: Option<String>,
    follows: String,
    addresses: Vec<Address>,
}

/// Store and revision of the first server.
#[derive(Clone, Copy, Debug)]
struct Baseline {
    store: Option<StoreId>,
    revision: u64,
}

pub(super) async fn walk(first: Connection) -> Result<Tree, Failure> {
    let response = watchers(&first).await.map_err(Failure::from)?;
    let at = response.at.clone().map(Cursor::try_from).transpose()?;
    let mark = Baseline {
        store: at.as_ref().map(|at| at.store),
        revision: at.map(|at| at.number(0)).unwrap_or_default(),
    };
    let mut tree =
        Tree { store: mark.store.map(|store| store.to_string()), revision: mark.revision, ..Tree::default() };
    let asked = PendingServer {
        name: first.hello.software.clone(),
        region: None,
        follows: String::new(),
        addresses: Vec::new(),
    };
    let mut next = tree.add_response(asked, Ok(response), mark);
    let mut known = BTreeSet::new();
    for _ in 0..MAX_LAYERS {
        next.retain(|question| known.insert(question.addresses.clone()));
        let asking = next.drain(..).map(|question| async move {
            let response = query(&question.addresses).await;
            (question, response)
        });
        let answers: Vec<_> = stream::iter(asking).buffer_unordered(MAX_CONCURRENT_QUERIES).collect().await;
        for (question, response) in answers {
            next.extend(tree.add_response(question, response, mark));
        }
    }
    tree.servers.sort_by(|a, b| b.lag.cmp(&a.lag).then_with(|| a.name.cmp(&b.name)));
    tree.watchers.sort_by(|a, b| b.lag.cmp(&a.lag).then_with(|| a.name.cmp(&b.name)));
    Ok(tree)
}

async fn watchers(connection: &Connection) -> Result<WatchersResponse, tonic::Status> {
    let request = WatchersRequest { prefix: Prefix::everything().to_string() };
    Ok(connection.rib().watchers(request).await?.into_inner())
}

/// Queries the first address that responds.
async fn query(addresses: &[Address]) -> Result<WatchersResponse, String> {
    let mut problem = "it advertises no address".to_owned();
    for address in addresses {
        let asking = async {
            let connection = handshake::connect(&transport_to(address).await, address, SOFTWARE)
                .await
                .map_err(|error| error.to_string())?;
            watchers(&connection).await.map_err(|status| status.message().to_owned())
        };
        match timeout(QUERY_TIMEOUT, asking).await {
            Ok(Ok(response)) => return Ok(response),
            Ok(Err(reason)) => problem = reason,
            Err(_) => problem = format!("{address} did not respond within {QUERY_TIMEOUT:?}"),
        }
    }
    Err(problem)
}

impl Tree {
    /// Adds the response of a server; returns the replicas among its watchers.
    fn add_response(
        &mut self,
        asked: PendingServer,
        response: Result<WatchersResponse, String>,
        mark: Baseline,
    ) -> Vec<PendingServer> {
        let mut server = Server {
            name: asked.name,
            region: asked.region,
            follows: Some(asked.follows).filter(|follows| !follows.is_empty()),
            revision: None,
            lag: None,
            age_ms: 0,
            watchers: 0,
            problem: None,
        };
        let mut below = Vec::new();
        match response {
            Err(problem) => server.problem = Some(problem),
            Ok(response) => {
                server.revision = mark.number(response.at);
                server.lag = server.revision.map(|revision| mark.lag(revision));
                server.age_ms = response.age_ms;
                // Commands such as this one read with a short watch of their own, but make no calls.
                for watcher in response.watchers.into_iter().filter(|watcher| watcher.software != SOFTWARE) {
                    server.watchers += 1;
                    below.extend(self.add_watcher(watcher, &server.name, mark));
                }
            }
        }
        self.servers.push(server);
        below
    }

    /// Adds a watcher; returns it as a server to query if it is a replica.
    fn add_watcher(&mut self, watcher: v1::Watcher, follows: &str, mark: Baseline) -> Option<PendingServer> {
        // Unknown info comes from a newer release, and is shown as a program.
        let peer = watcher.peer.and_then(|peer| PeerInfo::try_from(peer).ok());
        let region = peer.as_ref().and_then(|peer| peer.region.as_ref()).map(ToString::to_string);
        let kind = peer.as_ref().map(|peer| peer.kind);
        let applied = mark.number(watcher.applied);
        self.watchers.push(WatcherInfo {
            name: watcher.software.clone(),
            identity: watcher.identity,
            kind: match kind {
                Some(PeerKind::Replica) => "replica",
                Some(PeerKind::Agent) => "agent",
                None => "program",
            },
            region: region.clone(),
            version: peer.as_ref().and_then(|peer| peer.version.clone()),
            follows: follows.to_owned(),
            applied,
            lag: applied.map(|applied| mark.lag(applied)),
        });
        let addresses = peer.filter(|peer| peer.kind == PeerKind::Replica)?.addresses;
        Some(PendingServer { name: watcher.software, region, follows: follows.to_owned(), addresses })
    }
}

impl Baseline {
    /// The revision of a cursor of the same store.
    fn number(&self, cursor: Option<v1::Cursor>) -> Option<u64> {
        let cursor = Cursor::try_from(cursor?).ok()?;
        (Some(cursor.store) == self.store).then(|| cursor.number(0))
    }

    /// How far a revision is behind. A server queried later may be ahead, which is no lag.
    fn lag(&self, number: u64) -> u64 {
        self.revision.saturating_sub(number)
    }
}
