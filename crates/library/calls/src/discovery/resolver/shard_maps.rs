//! Large shard maps, which the agent shares in memory (ServiceRouter §3.3).

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
    transport::{Address, Transport},
    v1::{self, map_request, map_response},
};
use prost::Message;
use tokio::{
    sync::mpsc::{UnboundedReceiver, UnboundedSender},
    time::{sleep, timeout},
};

/// Minimum number of shards in a map that is read from the agent's shared memory. Smaller maps take at most half a
/// megabyte and need no socket.
pub(super) const LARGE: u32 = 16_384;
/// Timeout for connecting to the agent and receiving its greeting.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Identifies a map: the service, and the region whose replicas are included; all regions without one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct MapName {
    pub(super) service: ServiceName,
    pub(super) region: Option<Region>,
}

/// A command from the worker.
#[derive(Debug)]
pub(super) enum MapCommand {
    Follow(MapName),
    Unfollow(MapName),
}

/// A change sent by the agent.
#[derive(Debug)]
pub(super) enum MapEvent {
    /// A new or changed map.
    Map(MapName, Arc<ShardTable>),
    /// This version of a map is unusable, as are earlier versions that did not arrive. Version 0 means that the
    /// version is unknown.
    Failed(MapName, u64, String),
    /// The agent does not share maps, or not at present.
    Unavailable,
}

impl MapEvent {
    /// Whether this event makes an earlier one obsolete. A failed version leaves an earlier map in use; a failure of
    /// unknown version leaves a failure of known version.
    pub(super) fn replaces(&self, earlier: &Self) -> bool {
        match (self, earlier) {
            (Self::Map(new, _), Self::Map(name, _) | Self::Failed(name, ..)) => new == name,
            (Self::Failed(new, version, _), Self::Failed(name, earlier, _)) => {
                new == name && version >= earlier
            }
            (Self::Unavailable, Self::Unavailable) => true,
            _ => false,
        }
    }
}

/// A received table, and its memory segment once it has been read.
struct Table {
    memory: Arc<SealedMemory>,
    segment: Option<Segment>,
}

/// Follows shard maps until the worker ends.
pub(super) struct MapFollower<F> {
    pub(super) transport: Transport,
    pub(super) address: Address,
    pub(super) software: String,
    pub(super) publish: F,
    pub(super) wanted: BTreeSet<MapName>,
}

/// The maps received on one connection.
#[derive(Default)]
struct Received {
    tables: HashMap<u64, Table>,
    /// Tables in the latest version of each map.
    tables_of: HashMap<MapName, Vec<u64>>,
}

impl<F: Fn(MapEvent) + Send> MapFollower<F> {
    /// Runs until the sender of `commands` is dropped. Shared maps stay in use while the agent is away, since reader
    /// and writer both own the memory.
    pub(super) async fn run(mut self, mut commands: UnboundedReceiver<MapCommand>) {
        let mut failures = 0;
        loop {
            while self.wanted.is_empty() {
                let Some(command) = commands.recv().await else { return };
                self.note(&command);
            }
            match timeout(CONNECT_TIMEOUT, self.connect())
                .await
                .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
            {
                Ok(channel) => match self.exchange(channel, &mut commands, &mut failures).await {
                    Ok(()) => return,
                    Err(error) => tracing::debug!(%error, "the agent shares no shard maps any more"),
                },
                Err(error) => {
                    tracing::debug!(address = %self.address, %error, "no agent shares shard maps");
                }
            }
            (self.publish)(MapEvent::Unavailable);
            failures += 1;
            let wait = sleep(Backoff::default().delay(failures, RandomState::new().build_hasher().finish()));
            tokio::pin!(wait);
            loop {
                tokio::select! {
                    () = &mut wait => break,
                    command = commands.recv() => match command {
                        Some(command) => self.note(&command),
                        None => return,
                    },
                }
            }
        }
    }

    fn note(&mut self, command: &MapCommand) {
        match command {
            MapCommand::Follow(name) => self.wanted.insert(name.clone()),
            MapCommand::Unfollow(name) => self.wanted.remove(name),
        };
    }

    async fn connect(&self) -> io::Result<DescriptorChannel> {
        let socket = self.transport.dial(&self.address).await?;
        let (stream, _) = socket.into_unix().ok_or(io::ErrorKind::Unsupported)?;
        let mut channel = DescriptorChannel::new(stream);
        let hello = v1::HelloRequest {
            oldest_version: *PROTOCOL.start(),
            newest_version: *PROTOCOL.end(),
            software: self.software.clone(),
            ..Default::default()
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

    /// Exchanges messages with the agent. Returns `Ok` once the worker has ended.
    async fn exchange(
        &mut self,
        mut channel: DescriptorChannel,
        commands: &mut UnboundedReceiver<MapCommand>,
        failures: &mut u32,
    ) -> io::Result<()> {
        let mut received = Received::default();
        for name in &self.wanted {
            send(&channel, map_request::Kind::Follow(write_name(name))).await?;
        }
        loop {
            tokio::select! {
                command = commands.recv() => {
                    let Some(command) = command else { return Ok(()) };
                    self.note(&command);
                    match &command {
                        MapCommand::Follow(name) => send(&channel, map_request::Kind::Follow(write_name(name))).await?,
                        MapCommand::Unfollow(name) => {
                            received.tables_of.remove(name);
                            send(&channel, map_request::Kind::Unfollow(write_name(name))).await?;
                        }
                    }
                }
                frame = channel.receive() => {
                    let (frame, handles) = frame?.ok_or(io::ErrorKind::UnexpectedEof)?;
                    match v1::MapResponse::decode(frame)?.kind {
                        Some(map_response::Kind::Tables(tables)) => received.keep(tables, handles)?,
                        Some(map_response::Kind::Map(map)) => {
                            self.receive_map(&mut received, map).await?;
                            *failures = 0;
                        }
                        Some(map_response::Kind::Failure(failure)) => {
                            let name = read_name(failure.name).map_err(io::Error::other)?;
                            (self.publish)(MapEvent::Failed(name, failure.version, failure.reason));
                        }
                        Some(map_response::Kind::Hello(_)) | None => {}
                    }
                }
            }
        }
    }

    async fn receive_map(&self, received: &mut Received, map: v1::SharedMap) -> io::Result<()> {
        let name = read_name(map.name.clone()).map_err(io::Error::other)?;
        let version = map.version;
        // Checking a megabyte takes a millisecond, which is too long for the runtime's threads.
        let tables = std::mem::take(&mut received.tables);
        let work = tokio::task::spawn_blocking(move || {
            let mut tables = tables;
            let shards = assemble(&mut tables, &map);
            (tables, shards, [map.segments, vec![map.holders]].concat())
        });
        let (tables, shards, used) = work.await.map_err(io::Error::other)?;
        received.tables = tables;
        if self.wanted.contains(&name) {
            received.tables_of.insert(name.clone(), used);
        }
        let kept: HashSet<u64> = received.tables_of.values().flatten().copied().collect();
        received.tables.retain(|id, _| kept.contains(id));
        match shards {
            Ok(shards) => (self.publish)(MapEvent::Map(name, Arc::new(shards))),
            Err(problem) => (self.publish)(MapEvent::Failed(name, version, problem.to_string())),
        }
        Ok(())
    }
}

impl Received {
    fn keep(&mut self, tables: v1::MapTables, handles: Vec<OwnedFd>) -> io::Result<()> {
        if tables.ids.len() != handles.len() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "tables arrived without their file descriptors",
            ));
        }
        for (id, handle) in tables.ids.into_iter().zip(handles) {
            let memory = Arc::new(SealedMemory::from_descriptor(handle).map_err(io::Error::other)?);
            self.tables.insert(id, Table { memory, segment: None });
        }
        Ok(())
    }
}

/// Assembles a map from its tables. Each table is checked when it is first needed.
fn assemble(
    tables: &mut HashMap<u64, Table>,
    map: &v1::SharedMap,
) -> Result<ShardTable, Box<dyn std::error::Error + Send + Sync>> {
    let interval = convert::interval(&map.first_key, &map.last_key)?;
    let mut segments = Vec::with_capacity(map.segments.len());
    for id in &map.segments {
        let table = tables.get_mut(id).ok_or("a table is missing")?;
        let segment = match &table.segment {
            Some(segment) => segment.clone(),
            None => {
                let words: SegmentMemory = table.memory.clone();
                table.segment.insert(Segment::read(words)?).clone()
            }
        };
        segments.push(segment);
    }
    let holders = tables.get(&map.holders).ok_or("the list of holders is missing")?;
    let holders = Holdings::read(Bytes::from_owner(Owner(Arc::clone(&holders.memory))))?;
    Ok(ShardTable::new(map.version, interval, segments, holders)?)
}

/// Keeps the shared memory behind `Bytes` alive.
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

/// The address of the agent's socket for maps, derived from the agent's own address.
pub(super) fn address(upstreams: &[Address]) -> Option<Address> {
    upstreams.first().and_then(Address::maps)
}

/// Sends commands to a [`MapFollower`].
pub(super) type MapCommands = UnboundedSender<MapCommand>;
