//! Large shard maps, which the agent hands over as memory to read where it lies (ServiceRouter §3.3).

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    hash::{BuildHasher, Hasher, RandomState},
    io,
    os::fd::OwnedFd,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use fairmesh_model::{Invalid, Region, ServiceName};
use fairmesh_rib::follower::Backoff;
use fairmesh_router::{Holdings, Segment, SegmentMemory, ShardTable};
use fairmesh_shared_memory::{DescriptorChannel, SealedMemory};
use fairmesh_wire::{
    convert,
    handshake::PROTOCOL,
    transport::{Address, Plaintext, Transport},
    v1::{self, map_request, map_response},
};
use prost::Message;
use tokio::{
    sync::mpsc::{UnboundedReceiver, UnboundedSender},
    time::{sleep, timeout},
};

/// From how many shards on a map is read in the agent's memory. A smaller one takes half a megabyte at most, and spares the
/// caller a socket.
pub(super) const LARGE: u32 = 16_384;
/// How long the agent may take to be reached and to say hello.
const PATIENCE: Duration = Duration::from_secs(2);

/// Which map: of a service, with the copies of one region or of all.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct MapName {
    pub(super) service: ServiceName,
    pub(super) region: Option<Region>,
}

/// What the worker asks for.
#[derive(Debug)]
pub(super) enum Ask {
    Follow(MapName),
    Unfollow(MapName),
}

/// What the agent said.
#[derive(Debug)]
pub(super) enum Heard {
    /// A map, new or changed.
    Map(MapName, Arc<ShardTable>),
    /// This version of a map cannot be used, nor could an earlier one that was not heard of; 0 where the version is not
    /// known.
    Failed(MapName, u64, String),
    /// The agent hands nothing over, at least now.
    Unavailable,
}

/// A table as it was handed over, and what is in it once somebody looked.
struct Table {
    memory: Arc<SealedMemory>,
    segment: Option<Segment>,
}

/// Follows maps until nobody asks any more.
pub(super) struct Follower<F> {
    pub(super) address: Address,
    pub(super) software: String,
    pub(super) tell: F,
    pub(super) wanted: BTreeSet<MapName>,
}

/// The maps of one connection.
#[derive(Default)]
struct Received {
    tables: HashMap<u64, Table>,
    /// The tables that the last version of each map is made of.
    named: HashMap<MapName, Vec<u64>>,
}

impl<F: Fn(Heard) + Send> Follower<F> {
    /// Runs until the sender of `asks` is gone. What was handed over stays in use while the agent is away: the memory is
    /// the reader's as much as its maker's.
    pub(super) async fn run(mut self, mut asks: UnboundedReceiver<Ask>) {
        let mut failures = 0;
        loop {
            while self.wanted.is_empty() {
                let Some(ask) = asks.recv().await else { return };
                self.note(&ask);
            }
            match timeout(PATIENCE, self.connect())
                .await
                .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
            {
                Ok(channel) => match self.exchange(channel, &mut asks, &mut failures).await {
                    Ok(()) => return,
                    Err(error) => tracing::debug!(%error, "the agent hands no shard maps over any more"),
                },
                Err(error) => {
                    tracing::debug!(address = %self.address, %error, "no agent hands shard maps over");
                }
            }
            (self.tell)(Heard::Unavailable);
            failures += 1;
            let wait = sleep(Backoff::default().delay(failures, RandomState::new().build_hasher().finish()));
            tokio::pin!(wait);
            loop {
                tokio::select! {
                    () = &mut wait => break,
                    ask = asks.recv() => match ask {
                        Some(ask) => self.note(&ask),
                        None => return,
                    },
                }
            }
        }
    }

    fn note(&mut self, ask: &Ask) {
        match ask {
            Ask::Follow(name) => self.wanted.insert(name.clone()),
            Ask::Unfollow(name) => self.wanted.remove(name),
        };
    }

    async fn connect(&self) -> io::Result<DescriptorChannel> {
        let socket = Plaintext.dial(&self.address).await?;
        let (stream, _) = socket.into_unix().ok_or(io::ErrorKind::Unsupported)?;
        let mut channel = DescriptorChannel::new(stream);
        let hello = v1::HelloRequest {
            oldest_version: *PROTOCOL.start(),
            newest_version: *PROTOCOL.end(),
            software: self.software.clone(),
        };
        send(&channel, map_request::Kind::Hello(hello)).await?;
        let Some((frame, _)) = channel.receive().await? else {
            return Err(io::ErrorKind::UnexpectedEof.into());
        };
        match v1::MapResponse::decode(frame)?.kind {
            Some(map_response::Kind::Hello(hello)) if PROTOCOL.contains(&hello.version) => Ok(channel),
            _ => Err(io::Error::new(io::ErrorKind::InvalidData, "the agent speaks another version")),
        }
    }

    /// Ends well where nobody asks any more.
    async fn exchange(
        &mut self,
        mut channel: DescriptorChannel,
        asks: &mut UnboundedReceiver<Ask>,
        failures: &mut u32,
    ) -> io::Result<()> {
        let mut received = Received::default();
        for name in &self.wanted {
            send(&channel, map_request::Kind::Follow(write_name(name))).await?;
        }
        loop {
            tokio::select! {
                ask = asks.recv() => {
                    let Some(ask) = ask else { return Ok(()) };
                    self.note(&ask);
                    match &ask {
                        Ask::Follow(name) => send(&channel, map_request::Kind::Follow(write_name(name))).await?,
                        Ask::Unfollow(name) => {
                            received.named.remove(name);
                            send(&channel, map_request::Kind::Unfollow(write_name(name))).await?;
                        }
                    }
                }
                frame = channel.receive() => {
                    let (frame, handles) = frame?.ok_or(io::ErrorKind::UnexpectedEof)?;
                    match v1::MapResponse::decode(frame)?.kind {
                        Some(map_response::Kind::Tables(tables)) => received.keep(tables, handles)?,
                        Some(map_response::Kind::Map(map)) => {
                            self.map(&mut received, map).await?;
                            *failures = 0;
                        }
                        Some(map_response::Kind::Failure(failure)) => {
                            let name = read_name(failure.name).map_err(io::Error::other)?;
                            (self.tell)(Heard::Failed(name, failure.version, failure.reason));
                        }
                        Some(map_response::Kind::Hello(_)) | None => {}
                    }
                }
            }
        }
    }

    async fn map(&self, received: &mut Received, map: v1::SharedMap) -> io::Result<()> {
        let name = read_name(map.name.clone()).map_err(io::Error::other)?;
        let version = map.version;
        // A megabyte takes a millisecond to check, and callers wait for nothing meanwhile.
        let tables = std::mem::take(&mut received.tables);
        let work = tokio::task::spawn_blocking(move || {
            let mut tables = tables;
            let shards = assemble(&mut tables, &map);
            (tables, shards, [map.segments, vec![map.holders]].concat())
        });
        let (tables, shards, named) = work.await.map_err(io::Error::other)?;
        received.tables = tables;
        if self.wanted.contains(&name) {
            received.named.insert(name.clone(), named);
        }
        let kept: HashSet<u64> = received.named.values().flatten().copied().collect();
        received.tables.retain(|id, _| kept.contains(id));
        match shards {
            Ok(shards) => (self.tell)(Heard::Map(name, Arc::new(shards))),
            Err(problem) => (self.tell)(Heard::Failed(name, version, problem.to_string())),
        }
        Ok(())
    }
}

impl Received {
    fn keep(&mut self, tables: v1::MapTables, handles: Vec<OwnedFd>) -> io::Result<()> {
        if tables.ids.len() != handles.len() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "tables came without their handles"));
        }
        for (id, handle) in tables.ids.into_iter().zip(handles) {
            let memory = Arc::new(SealedMemory::from_descriptor(handle).map_err(io::Error::other)?);
            self.tables.insert(id, Table { memory, segment: None });
        }
        Ok(())
    }
}

/// Puts a map together from its tables, each of which is checked when it is first needed.
fn assemble(
    tables: &mut HashMap<u64, Table>,
    map: &v1::SharedMap,
) -> Result<ShardTable, Box<dyn std::error::Error + Send + Sync>> {
    let interval = convert::interval(&map.first_key, &map.last_key)?;
    let mut segments = Vec::with_capacity(map.segments.len());
    for id in &map.segments {
        let table = tables.get_mut(id).ok_or("a table was not handed over")?;
        let segment = match &table.segment {
            Some(segment) => segment.clone(),
            None => {
                let words: SegmentMemory = table.memory.clone();
                table.segment.insert(Segment::read(words)?).clone()
            }
        };
        segments.push(segment);
    }
    let holders = tables.get(&map.holders).ok_or("the list of holders was not handed over")?;
    let holders = Holdings::read(Bytes::from_owner(Owner(Arc::clone(&holders.memory))))?;
    Ok(ShardTable::new(map.version, interval, segments, holders)?)
}

/// Bytes that keep their memory.
struct Owner(Arc<SealedMemory>);

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        (*self.0).as_ref()
    }
}

async fn send(channel: &DescriptorChannel, kind: map_request::Kind) -> io::Result<()> {
    channel.send(&v1::MapRequest { kind: Some(kind) }.encode_to_vec(), &[]).await
}

fn read_name(name: Option<v1::MapName>) -> Result<MapName, Invalid> {
    let name = name.unwrap_or_default();
    let region = (!name.region.is_empty()).then(|| Region::new(name.region)).transpose()?;
    Ok(MapName { service: ServiceName::new(name.service)?, region })
}

fn write_name(name: &MapName) -> v1::MapName {
    let region = name.region.as_ref().map(ToString::to_string).unwrap_or_default();
    v1::MapName { service: name.service.to_string(), region }
}

/// Where maps are asked for: the socket beside the agent's.
pub(super) fn address(upstreams: &[Address]) -> Option<Address> {
    upstreams.first().and_then(Address::maps)
}

/// The way to ask.
pub(super) type Asks = UnboundedSender<Ask>;
