//! Hands tables over, on a socket of their own.

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
    transport::Listener,
    v1::{self, map_request, map_response::Kind},
};
use prost::Message;
use tokio::{
    net::UnixStream,
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    Latest, MapName,
    build::{Built, Table},
};
use crate::backend::AgentBackend;
use fairmesh_rib::server::Backend;

/// How long a program may take to say hello, and to take what it is sent, and how long it may stay without following a map.
const PATIENCE: Duration = Duration::from_secs(10);
/// The most programs at a time, of all users of the machine and of one, and the most maps that one program may follow.
const MOST_PROGRAMS: usize = 1024;
const MOST_OF_ONE: usize = MOST_PROGRAMS / 2;
const MOST_MAPS: usize = 256;

/// Bounds of the socket.
pub(crate) const fn limits() -> Limits {
    Limits::pages().with_connections(MOST_PROGRAMS)
}

/// Serves until `stopping`.
pub(crate) async fn serve(listener: Listener, backend: AgentBackend, stopping: CancellationToken) {
    let mut users = Users::default();
    loop {
        let Some(socket) = stopping.run_until_cancelled(listener.accept()).await else { return };
        // Sessions have time limits of their own.
        if let Some(connection) = socket.connection() {
            connection.exempt();
        }
        let Some((stream, place)) = socket.into_unix() else { continue };
        let Some(own) = stream.peer_cred().ok().and_then(|peer| users.place(peer.uid())) else {
            tracing::debug!("a user of this machine has as many programs that follow shard maps as one may");
            continue;
        };
        let (backend, stopping) = (backend.clone(), stopping.clone());
        backend.shared.clone().maps.tasks.spawn(async move {
            tokio::select! {
                ended = Session::new(stream, backend).run() => {
                    if let Err(error) = ended {
                        tracing::debug!(%error, "a program that follows shard maps is gone");
                    }
                }
                () = stopping.cancelled() => {}
            }
            drop((place, own));
        });
    }
}

/// The places that are left to each user who has taken some.
#[derive(Default)]
struct Users {
    left: BTreeMap<u32, Arc<Semaphore>>,
}

impl Users {
    /// A place for a program of this user; `None` where the user has as many as one may.
    fn place(&mut self, uid: u32) -> Option<OwnedSemaphorePermit> {
        self.left.retain(|_, left| left.available_permits() < MOST_OF_ONE);
        let left = self.left.entry(uid).or_insert_with(|| Arc::new(Semaphore::new(MOST_OF_ONE)));
        Arc::clone(left).try_acquire_owned().ok()
    }
}

/// One program.
struct Session {
    channel: DescriptorChannel,
    backend: AgentBackend,
    follows: BTreeMap<MapName, Following>,
    /// The tables that the program has.
    sent: HashSet<u64>,
    /// Since when it has followed nothing, where it does not.
    idle: Instant,
}

/// A map that a program follows.
struct Following {
    _claim: MapClaim,
    told: Latest,
}

/// Dropping it gives the map up.
struct MapClaim {
    backend: AgentBackend,
    name: MapName,
    /// What is held for it: less than it is made of where there was no room.
    held: Vec<Prefix>,
}

impl Drop for MapClaim {
    fn drop(&mut self) {
        self.backend.leave_map(&self.name, &self.held);
    }
}

impl Session {
    fn new(stream: UnixStream, backend: AgentBackend) -> Self {
        let channel = DescriptorChannel::new(stream);
        Self { channel, backend, follows: BTreeMap::new(), sent: HashSet::new(), idle: Instant::now() }
    }

    async fn run(mut self) -> io::Result<()> {
        if timeout(PATIENCE, self.greet()).await?? {
            self.exchange().await?;
        }
        Ok(())
    }

    /// Whether both speak a common version.
    async fn greet(&mut self) -> io::Result<bool> {
        let Some((frame, _)) = self.channel.receive().await? else { return Ok(false) };
        let Ok(v1::MapRequest { kind: Some(map_request::Kind::Hello(hello)) }) =
            v1::MapRequest::decode(frame)
        else {
            return Err(invalid("it did not say hello"));
        };
        let version = negotiate(&hello).map_err(|status| invalid(status.message()))?;
        let (store, location) = (self.backend.node().store(), self.backend.location());
        let hello = Hello { version, store, location, software: self.backend.software() };
        self.send(Kind::Hello(hello.into()), &[]).await?;
        Ok(true)
    }

    async fn exchange(&mut self) -> io::Result<()> {
        let mut made = self.backend.shared.maps.made();
        loop {
            made.mark_unchanged();
            self.tell().await?;
            tokio::select! {
                frame = self.channel.receive() => match frame? {
                    Some((frame, _)) => self.asked(v1::MapRequest::decode(frame)?)?,
                    None => return Ok(()),
                },
                // Its sender lives as long as the backend.
                _ = made.changed() => {}
                () = sleep_until(self.idle + PATIENCE), if self.follows.is_empty() => {
                    return Err(invalid("it follows nothing"));
                }
            }
        }
    }

    fn asked(&mut self, request: v1::MapRequest) -> io::Result<()> {
        match request.kind {
            Some(map_request::Kind::Follow(name)) => {
                let name = read_name(name).map_err(|e| invalid(&e.to_string()))?;
                if self.follows.len() >= MOST_MAPS {
                    return Err(invalid("it follows more maps than a program may"));
                }
                if !self.follows.contains_key(&name) {
                    let held = self.backend.join_map(&name);
                    let claim = MapClaim { backend: self.backend.clone(), name: name.clone(), held };
                    self.follows.insert(name, Following { _claim: claim, told: Latest::default() });
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

    /// Sends what is new.
    async fn tell(&mut self) -> io::Result<()> {
        let names: Vec<MapName> = self.follows.keys().cloned().collect();
        for name in names {
            let latest = self.backend.shared.maps.latest(&name);
            let Some(following) = self.follows.get_mut(&name) else { continue };
            let told = std::mem::replace(&mut following.told, latest.clone());
            if let Some(built) = &latest.built
                && told.built.is_none_or(|told| !Arc::ptr_eq(&told, built))
            {
                self.hand_over(&name, built).await?;
            }
            if let Some((version, reason)) = latest.failure.clone()
                && told.failure != latest.failure
            {
                let failure = v1::MapFailure { name: Some(write_name(&name)), version, reason };
                self.send(Kind::Failure(failure), &[]).await?;
            }
        }
        Ok(())
    }

    async fn hand_over(&mut self, name: &MapName, built: &Built) -> io::Result<()> {
        let tables = || built.segments.iter().chain([&built.holders]);
        let new: Vec<&Arc<Table>> = tables().filter(|table| !self.sent.contains(&table.id)).collect();
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

    /// Those that no map names any more, as the program does.
    fn forget_tables(&mut self) {
        let told = self.follows.values().filter_map(|following| following.told.built.as_ref());
        self.sent = told
            .flat_map(|built| built.segments.iter().chain([&built.holders]))
            .map(|table| table.id)
            .collect();
    }

    async fn send(&self, kind: Kind, handles: &[BorrowedFd<'_>]) -> io::Result<()> {
        let response = v1::MapResponse { kind: Some(kind) };
        timeout(PATIENCE, self.channel.send(&response.encode_to_vec(), handles)).await?
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_user_leaves_places_to_others() {
        let mut users = Users::default();
        let mut taken: Vec<_> = (0..MOST_OF_ONE).map(|_| users.place(1000).unwrap()).collect();
        assert!(users.place(1000).is_none());
        let other = users.place(1001).unwrap();
        taken.pop();
        taken.push(users.place(1000).unwrap());
        assert!(users.place(1000).is_none());
        drop((taken, other));
        assert!(users.place(1000).is_some());
        assert_eq!(users.left.len(), 1, "who has no place is not remembered");
    }
}
