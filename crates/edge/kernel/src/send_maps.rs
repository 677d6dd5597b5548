//! The maps through which the kernel sends requests: published services, and callers whose connections the proxy
//! serves.

use std::{fs::File, net::SocketAddr, os::fd::BorrowedFd, path::Path, sync::Arc};

use fairmesh_balancer::{BLOCK_ENDPOINTS, SharedBlock};
use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};

use crate::{
    KernelError, Link, Policy, PublishedPolicy, bpf_pins,
    caller_links::LinkTable,
    caller_read_probe::CallerReadProbe,
    completed_calls::{CompletedCall, CompletedCalls},
    connection_slots::{EndpointSlots, SlotTable},
    forwarding_sockets::ForwardingSockets,
    ipv6_numbers::Ipv6Numbers,
    map_layout::ENDPOINTS,
    permits::{Permit, PermitTable},
    published_services::PolicyTable,
    stats_blocks::BlockTable,
};

/// The maps through which the kernel sends requests for one proxy. Only one process at a time holds them: two
/// processes would assign the same slots to different connections.
#[derive(Debug)]
pub struct KernelSender {
    slots: Arc<SlotTable>,
    policies: Arc<PolicyTable>,
    blocks: Arc<BlockTable>,
    links: Arc<LinkTable>,
    permits: Arc<PermitTable>,
    completed: CompletedCalls,
    forwarding_sockets: ForwardingSockets,
}

impl KernelSender {
    /// Opens the maps and removes an earlier proxy's entries. `None` while another process holds them.
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
        bpf_pins::require_own(pins)?;
        let map = |name| bpf_pins::map(pins, name);
        let policies = PolicyTable::open(map("services")?, &map("policies")?)?;
        let numbers = Arc::new(Ipv6Numbers::open(map("ipv6_numbers")?)?);
        let slots = SlotTable::open(
            [&map("slots")?, &map("endpoints")?, &map("groups")?],
            [map("pooled_sockets")?, map("local_slots")?],
            Arc::clone(&numbers),
        )?;
        let of_links = [map("link_positions")?, map("proxy_links")?, map("proxy_sockets")?];
        let links =
            LinkTable::open(of_links, &map("links")?, CallerReadProbe::open(map("asking_sockets")?)?)?;
        Ok(Some(Self {
            slots: Arc::new(slots),
            policies: Arc::new(policies),
            blocks: Arc::new(BlockTable::open(&map("blocks")?, lock)?),
            links: Arc::new(links),
            permits: Arc::new(PermitTable::open(&map("permits")?)?),
            completed: CompletedCalls::open(map("completed")?)?,
            forwarding_sockets: ForwardingSockets::open(
                map("exchanges")?,
                map("forwarding_sockets")?,
                numbers,
            )?,
        }))
    }

    /// Releases the maps to another proxy. Before that, nothing may be published, no slot in use, and no
    /// service counting in a block.
    pub fn release(&self) {
        self.blocks.release();
    }

    /// Returns a block for the statistics of a service; the kernel updates the block too. `None` while all blocks are
    /// in use.
    pub fn take_block(&self) -> Option<Box<dyn SharedBlock>> {
        self.blocks.take()
    }

    /// Whether the kernel counts in this block. Blocks of removed maps do not count.
    pub fn counts_in(&self, block: &dyn SharedBlock) -> bool {
        self.blocks.contains(block.stats())
    }

    /// Slots for connections to the endpoint with this index in a block. `None` if the index is out of range.
    pub fn endpoint(&self, block: u32, index: u32) -> Option<EndpointSlots> {
        let endpoint = block.checked_mul(BLOCK_ENDPOINTS as u32)?.checked_add(index)?;
        (endpoint < ENDPOINTS).then(|| self.slots.endpoint(endpoint))
    }

    /// A permit for requests to this endpoint, whose connections need one. `None` while all are in use.
    pub fn permit(&self, endpoint: &EndpointSlots) -> Option<Permit> {
        self.permits.take(endpoint.key())
    }

    /// Lets the kernel send requests with this host until the returned value is dropped. `None` if that is
    /// not possible.
    pub fn publish(&self, host: &str, policy: &Policy<'_>) -> Option<PublishedPolicy> {
        self.policies.publish(host, policy)
    }

    /// Lets the kernel send requests of the caller whose socket has this cookie, until the link is dropped.
    /// `None` if that is not possible. `socket` is the proxy's socket of the connection; responses on it may
    /// take the short cut.
    pub fn add_caller(
        &self,
        cookie: u64,
        caller: SocketAddr,
        socket: Option<BorrowedFd<'_>>,
    ) -> Option<Link> {
        self.links.add(cookie, caller, socket)
    }

    /// Lets the proxy's requests on this connection to a server take the short cut if possible.
    pub fn add_connection(&self, proxy: SocketAddr, server: SocketAddr, socket: BorrowedFd<'_>) {
        self.forwarding_sockets.add(proxy, server, socket);
    }

    /// Whether a server in an attached cgroup has accepted this connection.
    pub fn is_accepted(&self, proxy: SocketAddr, server: SocketAddr) -> bool {
        self.forwarding_sockets.is_accepted(proxy, server)
    }

    /// Passes the calls completed since the last call of this function to `take`. Returns their number.
    pub fn take_completed(&self, take: impl FnMut(CompletedCall<'_>)) -> usize {
        self.completed.take(take)
    }
}
