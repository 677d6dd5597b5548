//! Sends tables to programs, over a socket of their own.

use std::{
    collections::{BTreeMap, HashSet},
    io,
    os::fd::BorrowedFd,
    sync::Arc,
    time::Duration,
};

use fairmesh_listen::Limits;
use fairmesh_model::{Invalid, Prefix, Region, ServiceName};
use fairmesh_shared_memory::{DescriptorChannel, MAX_DESCRIPTORS};
use fairmesh_wire::{
    convert,
    handshake::{Hello, negotiate},
    transport::{Listener, UserPlaces},
    v1::{self, map_request, map_response::Kind},
};
use prost::Message;
use tokio::{
    net::UnixStream,
    time::{Instant, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    MapName, MapStatus,
    table_builder::{BuiltMap, SharedTable},
};
use crate::served_rib::AgentRib;
use fairmesh_rib::server::ServedRib;

/// Timeout of the handshake, of sending, and of a session that follows no map.
const SESSION_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of sessions in total and per user, and of maps per session.
const MAX_SESSIONS: usize = 1024;
const MAX_SESSIONS_PER_USER: usize = MAX_SESSIONS / 2;
const MAX_MAPS_PER_SESSION: usize = 256;

/// Limits of the listener.
pub(crate) const fn limits() -> Limits {
    Limits::pages().with_connections(MAX_SESSIONS)
}

/// Serves until `stopping`.
pub(crate) async fn serve(listener: Listener, backend: AgentRib, stopping: CancellationToken) {
    let users = UserPlaces::new(MAX_SESSIONS_PER_USER);
    loop {
        let Some(accepted) = stopping.run_until_cancelled(listener.accept()).await else { return };
        // This is immediate on a Unix socket.
        let Ok(socket) = accepted.handshake().await else { continue };
        // Sessions have time limits of their own.
        if let Some(connection) = socket.connection() {
            connection.exempt();
        }
        let Some((stream, place)) = socket.into_unix() else { continue };
        let Some(own) = stream.peer_cred().ok().and_then(|peer| users.enter(peer.uid())) else {
            tracing::debug!("session refused: this user has the maximum of sessions");
            continue;
        };
        let (backend, stopping) = (backend.clone(), stopping.clone());
        backend.shared.clone().maps.tasks.spawn(async move {
            tokio::select! {
                ended = Session::new(stream, backend).run() => {
                    if let Err(error) = ended {
                        tracing::debug!(%error, "shard map session ended");
                    }
                }
                () = stopping.cancelled() => {}
            }
            drop((place, own));
        });
    }
}

/// The session of one program.
struct Session {
    channel: DescriptorChannel,
    backend: AgentRib,
    follows: BTreeMap<MapName, SentMap>,
    /// Ids of the tables sent to the program.
    sent: HashSet<u64>,
    /// Since when the program has followed no map.
    idle: Instant,
}

/// A map followed by a program.
struct SentMap {
    _claim: MapClaim,
    status: MapStatus,
}

/// Leaves the map when dropped.
struct MapClaim {
    backend: AgentRib,
    name: MapName,
    /// Prefixes claimed for the map; fewer than it has if claims were refused.
    held: Vec<Prefix>,
}

impl Drop for MapClaim {
    fn drop(&mut self) {
        self.backend.leave_map(&self.name, &self.held);
    }
}

impl Session {
    fn new(stream: UnixStream, backend: AgentRib) -> Self {
        let channel = DescriptorChannel::new(stream);
        Self { channel, backend, follows: BTreeMap::new(), sent: HashSet::new(), idle: Instant::now() }
    }

    async fn run(mut self) -> io::Result<()> {
        if timeout(SESSION_TIMEOUT, self.handshake()).await?? {
            self.run_exchange().await?;
        }
        Ok(())
    }

    /// Negotiates a version; false if the program closed the connection first.
    async fn handshake(&mut self) -> io::Result<bool> {
        let Some((frame, _)) = self.channel.receive().await? else { return Ok(false) };
        let Ok(v1::MapRequest { kind: Some(map_request::Kind::Hello(hello)) }) =
            v1::MapRequest::decode(frame)
        else {
            return Err(invalid("the first message is not HelloRequest"));
        };
        let version = negotiate(&hello).map_err(|status| invalid(status.message()))?;
        let (store, location) = (self.backend.node().store(), self.backend.location());
        let hello = Hello { version, store, location, software: self.backend.software() };
        self.send(Kind::Hello(hello.into()), &[]).await?;
        Ok(true)
    }

    async fn run_exchange(&mut self) -> io::Result<()> {
        let mut build_results = self.backend.shared.maps.build_results();
        loop {
            build_results.mark_unchanged();
            self.send_updates().await?;
            tokio::select! {
                frame = self.channel.receive() => match frame? {
                    Some((frame, _)) => self.on_request(v1::MapRequest::decode(frame)?)?,
                    None => return Ok(()),
                },
                // The sender lives as long as the backend.
                _ = build_results.changed() => {}
                () = sleep_until(self.idle + SESSION_TIMEOUT), if self.follows.is_empty() => {
                    return Err(invalid("no map followed in time"));
                }
            }
        }
    }

    fn on_request(&mut self, request: v1::MapRequest) -> io::Result<()> {
        match request.kind {
            Some(map_request::Kind::Follow(name)) => {
                let name = read_name(name).map_err(|e| invalid(&e.to_string()))?;
                if self.follows.len() >= MAX_MAPS_PER_SESSION {
                    return Err(invalid("too many maps followed in one session"));
                }
                if !self.follows.contains_key(&name) {
                    let held = self.backend.join_map(&name);
                    let claim = MapClaim { backend: self.backend.clone(), name: name.clone(), held };
                    self.follows.insert(name, SentMap { _claim: claim, status: MapStatus::default() });
                }
            }
            Some(map_request::Kind::Unfollow(name)) => {
                let name = read_name(name).map_err(|e| invalid(&e.to_string()))?;
                if self.follows.remove(&name).is_some() {
                    self.idle = Instant::now();
                    self.forget_tables();
                }
            }
            Some(map_request::Kind::Hello(_)) | None => {}
        }
        Ok(())
    }

    /// Sends changed maps and failures.
    async fn send_updates(&mut self) -> io::Result<()> {
        let names: Vec<MapName> = self.follows.keys().cloned().collect();
        for name in names {
            let latest = self.backend.shared.maps.latest(&name);
            let Some(following) = self.follows.get_mut(&name) else { continue };
            let sent = std::mem::replace(&mut following.status, latest.clone());
            if let Some(built) = &latest.built
                && sent.built.is_none_or(|sent| !Arc::ptr_eq(&sent, built))
            {
                self.send_map(&name, built).await?;
            }
            if let Some((version, reason)) = latest.failure.clone()
                && sent.failure != latest.failure
            {
                let failure = v1::MapFailure { name: Some(write_name(&name)), version, reason };
                self.send(Kind::Failure(failure), &[]).await?;
            }
        }
        Ok(())
    }

    async fn send_map(&mut self, name: &MapName, built: &BuiltMap) -> io::Result<()> {
        let tables = || built.segments.iter().chain([&built.holders]);
        let new: Vec<&Arc<SharedTable>> = tables().filter(|table| !self.sent.contains(&table.id)).collect();
        for some in new.chunks(MAX_DESCRIPTORS) {
            let ids = some.iter().map(|table| table.id).collect();
            let handles: Vec<_> = some.iter().filter_map(|table| table.memory.descriptor()).collect();
            self.send(Kind::Tables(v1::MapTables { ids }), &handles).await?;
        }
        let map = v1::SharedMap {
            name: Some(write_name(name)),
            version: built.version,
            first_key: convert::shard_key_bytes(built.interval.first),
            last_key: convert::shard_key_bytes(built.interval.last),
            segments: built.segments.iter().map(|table| table.id).collect(),
            holders: built.holders.id,
        };
        self.send(Kind::Map(map), &[]).await?;
        self.forget_tables();
        Ok(())
    }

    /// Forgets tables that no followed map uses, as the program does.
    fn forget_tables(&mut self) {
        let sent = self.follows.values().filter_map(|following| following.status.built.as_ref());
        self.sent = sent
            .flat_map(|built| built.segments.iter().chain([&built.holders]))
            .map(|table| table.id)
            .collect();
    }

    async fn send(&self, kind: Kind, handles: &[BorrowedFd<'_>]) -> io::Result<()> {
        let response = v1::MapResponse { kind: Some(kind) };
        timeout(SESSION_TIMEOUT, self.channel.send(&response.encode_to_vec(), handles)).await?
    }
}

fn read_name(name: v1::MapName) -> Result<MapName, Invalid> {
    let region = (!name.region.is_empty()).then(|| Region::new(name.region)).transpose()?;
    Ok(MapName { service: ServiceName::new(name.service)?, region })
}

fn write_name(name: &MapName) -> v1::MapName {
    let region = name.region.as_ref().map(ToString::to_string).unwrap_or_default();
    v1::MapName { service: name.service.to_string(), region }
}

fn invalid(problem: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, problem)
}
