//! The maps by which the proxy has the kernel send requests: services that it publishes, and callers whose connections it serves.

use std::{fs::File, net::SocketAddr, os::fd::BorrowedFd, path::Path, sync::Arc};

use fairmesh_balancer::{BLOCK_ENDPOINTS, SharedBlock};
use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};

use crate::{
    KernelError, Link, Policy, PublishedPolicy,
    blocks::BlockTable,
    completed::{CompletedCall, CompletedCalls},
    forwarding_sockets::ForwardingSockets,
    layout::ENDPOINTS,
    links::LinkTable,
    looker::Looker,
    pins,
    policies::PolicyTable,
    slots::{EndpointSlots, SlotTable},
};

/// What the kernel knows of one proxy. One process at a time has it: two would give the same slots to different connections.
#[derive(Debug)]
pub struct KernelSender {
    slots: Arc<SlotTable>,
    policies: Arc<PolicyTable>,
    blocks: Arc<BlockTable>,
    links: Arc<LinkTable>,
    completed: CompletedCalls,
    forwarding_sockets: ForwardingSockets,
}

impl KernelSender {
    /// Opens the maps, and removes what an earlier proxy left in them. `None` while another process has them.
    ///
    /// # Errors
    /// When nothing is attached, or the maps cannot be opened.
    pub fn open(pins: &Path) -> Result<Option<Self>, KernelError> {
        let lock = File::open(pins).map_err(KernelError::file(pins))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Ok(None),
            Err(error) => return Err(KernelError::file(pins)(error.into())),
        }
        pins::require_own(pins)?;
        let map = |name| pins::map(pins, name);
        let policies = PolicyTable::open(map("services")?, &map("policies")?)?;
        let slots = SlotTable::open(
            [&map("slots")?, &map("endpoints")?, &map("groups")?],
            map("pooled_sockets")?,
            map("local_slots")?,
        )?;
        let of_links = [map("link_positions")?, map("proxy_links")?, map("proxy_sockets")?];
        let links = LinkTable::open(of_links, &map("links")?, Looker::open(map("asking_sockets")?)?)?;
        Ok(Some(Self {
            slots: Arc::new(slots),
            policies: Arc::new(policies),
            blocks: Arc::new(BlockTable::open(&map("blocks")?, lock)?),
            links: Arc::new(links),
            completed: CompletedCalls::open(map("completed")?)?,
            forwarding_sockets: ForwardingSockets::open(map("exchanges")?, map("forwarding_sockets")?)?,
        }))
    }

    /// Lets another proxy have the kernel send requests. Nothing is published, no slot is in use, and all services count elsewhere.
    pub fn release(&self) {
        self.blocks.release();
    }

    /// Memory for the statistics of a service, in which the kernel counts too. `None` while all is in use.
    pub fn take_block(&self) -> Option<Box<dyn SharedBlock>> {
        self.blocks.take()
    }

    /// Whether the kernel counts in this memory, and not in that of maps that were removed.
    pub fn counts_in(&self, block: &dyn SharedBlock) -> bool {
        self.blocks.contains(block.stats())
    }

    /// Slots for connections to the endpoint with this index in a block. `None` if there is no such one.
    pub fn endpoint(&self, block: u32, index: u32) -> Option<EndpointSlots> {
        let endpoint = block.checked_mul(BLOCK_ENDPOINTS as u32)?.checked_add(index)?;
        (endpoint < ENDPOINTS).then(|| self.slots.endpoint(endpoint))
    }

    /// Has the kernel send requests with this host, until the returned value is dropped. `None` if it cannot.
    pub fn publish(&self, host: &str, policy: &Policy<'_>) -> Option<PublishedPolicy> {
        self.policies.publish(host, policy)
    }

    /// Has the kernel send requests of the caller whose socket has this cookie, until the link is dropped. `None` if it cannot.
    /// `socket` is the proxy's of its connection, on which responses may take the short cut.
    pub fn add_caller(
        &self,
        cookie: u64,
        caller: SocketAddr,
        socket: Option<BorrowedFd<'_>>,
    ) -> Option<Link> {
        self.links.add(cookie, caller, socket)
    }

    /// Has requests that the proxy sends on this connection to a server take the short cut, where they can.
    pub fn add_connection(&self, proxy: SocketAddr, server: SocketAddr, socket: BorrowedFd<'_>) {
        self.forwarding_sockets.add(proxy, server, socket);
    }

    /// Takes the calls whose responses the kernel has sent to their callers since the last time; how many there were.
    pub fn take_completed(&self, take: impl FnMut(CompletedCall<'_>)) -> usize {
        self.completed.take(take)
    }
}
