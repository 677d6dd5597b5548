//! The maps by which the proxy has the kernel send requests: services that it publishes, and callers whose connections it serves.

use std::{
    fs::File,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

use aya::maps::{HashMap, MapData};
use fairmesh_balancer::{BLOCK_ENDPOINTS, SharedBlock};
use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};

use crate::{
    KernelError, Policy, PublishedPolicy,
    blocks::BlockTable,
    completed::{CompletedCall, CompletedCalls},
    layout::{ENDPOINTS, ServedValue},
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
    served: Mutex<HashMap<MapData, u64, ServedValue>>,
    sent: Mutex<HashMap<MapData, u64, u64>>,
    completed: CompletedCalls,
}

/// What has come to a caller's socket once it has received all responses of the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settled {
    /// Bytes of all responses that the proxy has sent on the connection.
    pub received: u64,
    /// How many of them were to requests that the kernel sent.
    pub requests: u64,
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
        let refused = |error| KernelError::refused("a map", &error);
        let map = |name| pins::map(pins, name);
        let policies = PolicyTable::open(map("services")?, &map("policies")?)?;
        let slots = SlotTable::open(
            [&map("slots")?, &map("endpoints")?],
            map("pooled_sockets")?,
            map("local_slots")?,
        )?;
        let mut served: HashMap<_, u64, ServedValue> = map("served")?.try_into().map_err(refused)?;
        let mut sent: HashMap<_, u64, u64> = map("sent")?.try_into().map_err(refused)?;
        let stale: Vec<_> = sent.keys().chain(served.keys()).filter_map(Result::ok).collect();
        for cookie in stale {
            // Fails only if it is not there.
            let _ = (served.remove(&cookie), sent.remove(&cookie));
        }
        Ok(Some(Self {
            slots: Arc::new(slots),
            policies: Arc::new(policies),
            blocks: Arc::new(BlockTable::open(&map("blocks")?, lock)?),
            served: Mutex::new(served),
            sent: Mutex::new(sent),
            completed: CompletedCalls::open(map("completed")?)?,
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

    /// Has the kernel send requests of this caller, once the proxy has [served](Self::set_served) what it sent before; whether it
    /// does.
    pub fn add_caller(&self, cookie: u64) -> bool {
        let served = ServedValue { bytes: 0, received: u64::MAX, requests: 0 };
        // Programs look for both.
        self.sent.lock().unwrap_or_else(PoisonError::into_inner).insert(cookie, 0, 0).is_ok()
            && self.served.lock().unwrap_or_else(PoisonError::into_inner).insert(cookie, served, 0).is_ok()
    }

    /// The proxy has responded, or is about to, to all requests in the first `bytes` of the caller's connection. If it knows how much
    /// it sends with that, the response to the next request that the kernel sends may come past it.
    pub fn set_served(&self, cookie: u64, bytes: u64, settled: Option<Settled>) {
        let Settled { received, requests } = settled.unwrap_or(Settled { received: u64::MAX, requests: 0 });
        let served = ServedValue { bytes, received, requests };
        // Fails only if the caller is not there: then the kernel sends none of its requests.
        let _ = self.served.lock().unwrap_or_else(PoisonError::into_inner).insert(cookie, served, 0);
    }

    /// Whether servers on this machine are connected to.
    pub fn has_local_servers(&self) -> bool {
        self.slots.has_local()
    }

    /// Takes the calls whose responses the kernel has sent to their callers since the last time; how many there were.
    pub fn take_completed(&self, take: impl FnMut(CompletedCall<'_>)) -> usize {
        self.completed.take(take)
    }

    /// The number of requests of this caller that the kernel has sent.
    pub fn sent(&self, cookie: u64) -> u64 {
        self.sent.lock().unwrap_or_else(PoisonError::into_inner).get(&cookie, 0).unwrap_or(0)
    }

    /// Leaves requests of this caller to the proxy.
    pub fn withdraw_caller(&self, cookie: u64) {
        // Fails only if it is not there.
        let _ = self.served.lock().unwrap_or_else(PoisonError::into_inner).remove(&cookie);
    }

    /// Removes a caller whose connection has ended.
    pub fn remove_caller(&self, cookie: u64) {
        self.withdraw_caller(cookie);
        // Fails only if it is not there.
        let _ = self.sent.lock().unwrap_or_else(PoisonError::into_inner).remove(&cookie);
    }
}
