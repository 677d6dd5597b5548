//! Asks the control plane who watches it, then every replica among them, and so on down.

use std::{collections::BTreeSet, time::Duration};

use fairmesh_model::{Cursor, Prefix, StoreId};
use fairmesh_rib::{About, Kind};
use fairmesh_wire::{
    handshake::{self, Connection},
    transport::Address,
    v1::{self, WatchersRequest, WatchersResponse},
};
use futures_util::{StreamExt, stream};
use serde::Serialize;
use tokio::time::timeout;

use crate::{connect::SOFTWARE, failure::Failure};

/// How many replicas are asked at one time.
const AT_ONCE: usize = 32;
/// How long one may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// The most layers: replicas that follow each other in a circle must not be asked for ever.
const MAX_LAYERS: usize = 16;

/// Who serves and who watches, as far as everybody could be asked.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Tree {
    /// The store that revisions belong to; absent where a replica that has met none was asked.
    pub(super) store: Option<String>,
    /// The revision of whoever was asked first, to which everybody is compared.
    pub(super) revision: u64,
    pub(super) servers: Vec<Server>,
    pub(super) watchers: Vec<Watching>,
}

/// The control plane or a replica.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Server {
    pub(super) name: String,
    pub(super) region: Option<String>,
    /// Who it follows; absent for the one that was asked first.
    pub(super) follows: Option<String>,
    /// What it has; absent where it could not be asked.
    pub(super) revision: Option<u64>,
    /// How many revisions it is behind.
    pub(super) lag: Option<u64>,
    /// How old what it has may be; 0 while it is in touch with the control plane.
    pub(super) age_ms: u64,
    pub(super) watchers: usize,
    /// Why it could not be asked.
    pub(super) problem: Option<String>,
}

/// One that watches.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Watching {
    pub(super) name: String,
    pub(super) identity: String,
    /// `replica`, `agent` or `program`.
    pub(super) kind: &'static str,
    pub(super) region: Option<String>,
    pub(super) follows: String,
    /// Up to where it, and everybody below it, decides by what it was sent; absent for one of another store.
    pub(super) applied: Option<u64>,
    /// How many revisions that is behind.
    pub(super) lag: Option<u64>,
}

/// A replica that is to be asked.
#[derive(Clone, Debug)]
struct Question {
    name: String,
    region: Option<String>,
    follows: String,
    addresses: Vec<Address>,
}

/// What the first one that was asked counts by.
#[derive(Clone, Copy, Debug)]
struct Mark {
    store: Option<StoreId>,
    revision: u64,
}

pub(super) async fn walk(first: Connection) -> Result<Tree, Failure> {
    let answer = watchers(&first).await.map_err(Failure::from)?;
    let at = answer.at.clone().map(Cursor::try_from).transpose()?;
    let mark = Mark {
        store: at.as_ref().map(|at| at.store),
        revision: at.map(|at| at.number(0)).unwrap_or_default(),
    };
    let mut tree =
        Tree { store: mark.store.map(|store| store.to_string()), revision: mark.revision, ..Tree::default() };
    let asked = Question {
        name: first.hello.software.clone(),
        region: None,
        follows: String::new(),
        addresses: Vec::new(),
    };
    let mut next = tree.take(asked, Ok(answer), mark);
    let mut known = BTreeSet::new();
    for _ in 0..MAX_LAYERS {
        next.retain(|question| known.insert(question.addresses.clone()));
        let asking = next.drain(..).map(|question| async move {
            let answer = ask(&question.addresses).await;
            (question, answer)
        });
        let answers: Vec<_> = stream::iter(asking).buffer_unordered(AT_ONCE).collect().await;
        for (question, answer) in answers {
            next.extend(tree.take(question, answer, mark));
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

/// Asks at the first address that answers.
async fn ask(addresses: &[Address]) -> Result<WatchersResponse, String> {
    let mut problem = "it does not say where it can be asked".to_owned();
    for address in addresses {
        let asking = async {
            let connection =
                handshake::connect(address, SOFTWARE).await.map_err(|error| error.to_string())?;
            watchers(&connection).await.map_err(|status| status.message().to_owned())
        };
        match timeout(PATIENCE, asking).await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(reason)) => problem = reason,
            Err(_) => problem = format!("{address} did not answer within {PATIENCE:?}"),
        }
    }
    Err(problem)
}

impl Tree {
    /// Takes what one that serves answered; returns the replicas that watch it.
    fn take(
        &mut self,
        asked: Question,
        answer: Result<WatchersResponse, String>,
        mark: Mark,
    ) -> Vec<Question> {
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
        match answer {
            Err(problem) => server.problem = Some(problem),
            Ok(answer) => {
                server.revision = mark.number(answer.at);
                server.lag = server.revision.map(|revision| mark.lag(revision));
                server.age_ms = answer.age_ms;
                // Commands like this one read by a short watch of their own, which calls nobody.
                for watcher in answer.watchers.into_iter().filter(|watcher| watcher.software != SOFTWARE) {
                    server.watchers += 1;
                    below.extend(self.watching(watcher, &server.name, mark));
                }
            }
        }
        self.servers.push(server);
        below
    }

    /// Takes note of one that watches; returns it as one to be asked, where it is a replica.
    fn watching(&mut self, watcher: v1::Watcher, follows: &str, mark: Mark) -> Option<Question> {
        // What cannot be read comes from a newer release, and is shown as a program.
        let about = watcher.about.and_then(|about| About::try_from(about).ok());
        let region = about.as_ref().and_then(|about| about.region.as_ref()).map(ToString::to_string);
        let kind = about.as_ref().map(|about| about.kind);
        let applied = mark.number(watcher.applied);
        self.watchers.push(Watching {
            name: watcher.software.clone(),
            identity: watcher.identity,
            kind: match kind {
                Some(Kind::Replica) => "replica",
                Some(Kind::Agent) => "agent",
                None => "program",
            },
            region: region.clone(),
            follows: follows.to_owned(),
            applied,
            lag: applied.map(|applied| mark.lag(applied)),
        });
        let addresses = about.filter(|about| about.kind == Kind::Replica)?.addresses;
        Some(Question { name: watcher.software, region, follows: follows.to_owned(), addresses })
    }
}

impl Mark {
    /// The number of a cursor of the same store.
    fn number(&self, cursor: Option<v1::Cursor>) -> Option<u64> {
        let cursor = Cursor::try_from(cursor?).ok()?;
        (Some(cursor.store) == self.store).then(|| cursor.number(0))
    }

    /// How many revisions a number is behind. Who was asked later may be ahead, which is no lag.
    fn lag(&self, number: u64) -> u64 {
        self.revision.saturating_sub(number)
    }
}
