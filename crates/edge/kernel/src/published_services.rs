//! Published services, for which the programs pick endpoints.
//!
//! Programs find a service by its host, and its policy by position. A program may be preempted anywhere, and
//! the kernel reuses the memory of removed map entries at once. A program therefore discards its result
//! unless the ids of entry and policy agree and the generation is unchanged.
#![allow(unsafe_code, reason = "the programs share this memory")]

use std::{
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::Ordering::{Relaxed, Release},
    },
};

use aya::maps::{HashMap, Map, MapData};
use fairmesh_router::{ROUTE_ARMS, ROUTE_STEPS, RouteNumbers, RouteStep, ServiceNumbers};

use crate::{
    KernelError,
    map_layout::{ArmValue, HostKey, PolicyBuffers, PolicyValue, SERVICES, ServiceValue},
    mapped_array::{Mapped, SharedValue},
};

// SAFETY: an atomic, and a cell of integers that only the functions below write, one at a time.
unsafe impl SharedValue for PolicyBuffers {}

/// The policies of all published services.
pub(crate) struct PolicyTable {
    hosts: Mutex<HashMap<MapData, HostKey, ServiceValue>>,
    policies: Mapped<PolicyBuffers>,
    writer: Mutex<Writer>,
}

#[derive(Debug)]
struct Writer {
    used: Vec<bool>,
    last_id: u64,
}

/// A service, published until dropped.
#[derive(Debug)]
pub struct PublishedPolicy {
    table: Arc<PolicyTable>,
    host: HostKey,
    position: u32,
    id: u64,
}

impl PolicyTable {
    /// Maps the policies, and removes an earlier proxy's policies.
    pub(crate) fn open(hosts: Map, policies: &Map) -> Result<Self, KernelError> {
        let refused = |error| KernelError::refused("a map", &error);
        let mut hosts: HashMap<_, HostKey, ServiceValue> = hosts.try_into().map_err(refused)?;
        let left: Vec<_> = hosts.keys().collect::<Result<_, _>>().map_err(refused)?;
        for host in left {
            hosts.remove(&host).map_err(refused)?;
        }
        let policies: Mapped<PolicyBuffers> = Mapped::open(policies, SERVICES as usize)?;
        // Ids continue after an earlier proxy's ids, because a program may still read its policies.
        let ids = policies.iter().map(|policy| {
            // SAFETY: nothing writes policies before this function returns.
            let buffers = unsafe { &*policy.buffers.get() };
            buffers[0].id.max(buffers[1].id)
        });
        let last_id = ids.max().unwrap_or(0);
        let writer = Mutex::new(Writer { used: vec![false; SERVICES as usize], last_id });
        Ok(Self { hosts: Mutex::new(hosts), policies, writer })
    }

    /// Publishes a service under the host in requests. `None` if the host is too long or there are too many services.
    pub(crate) fn publish(self: &Arc<Self>, host: &str, policy: &Policy<'_>) -> Option<PublishedPolicy> {
        let host = HostKey::new(host)?;
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let position = writer.used.iter().position(|used| !used)? as u32;
        writer.last_id += 1;
        let id = writer.last_id;
        self.write(position, id, policy);
        let entry = ServiceValue { id, position, unused: 0 };
        self.hosts.lock().unwrap_or_else(PoisonError::into_inner).insert(host, entry, 0).ok()?;
        writer.used[position as usize] = true;
        Some(PublishedPolicy { table: Arc::clone(self), host, position, id })
    }

    /// Writes the next generation. The caller must hold the writer's lock.
    fn write(&self, position: u32, id: u64, policy: &Policy<'_>) {
        let value = policy.value(PolicyKey { position, id });
        // SAFETY: see `replace`.
        self.replace(position, |next| unsafe { next.write_volatile(value) });
    }

    /// Writes a generation without a policy, so that programs discard picks by the last one. The caller must
    /// hold the writer's lock.
    fn end(&self, position: u32) {
        // SAFETY: see `replace`; the field lies within the buffer.
        self.replace(position, |next| unsafe { (&raw mut (*next).id).write_volatile(0) });
    }

    /// Calls `write` on the buffer that is not current, then advances the generation. Programs discard what
    /// they read from that buffer. Only this process writes, one thread at a time, and makes no reference
    /// into the cell meanwhile.
    fn replace(&self, position: u32, write: impl FnOnce(*mut PolicyValue)) {
        let policies = &self.policies[position as usize];
        let next = policies.generation.load(Relaxed).wrapping_add(1);
        write(policies.buffers.get().cast::<PolicyValue>().wrapping_add((next & 1) as usize));
        policies.generation.store(next, Release);
    }
}

/// Position and id of a published policy. The id is unique to the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolicyKey {
    position: u32,
    id: u64,
}

/// The service that a backend of a split refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArmTarget {
    /// The service that owns the policy.
    Own,
    /// Another published service.
    Published(PolicyKey),
    /// A service that is not published. Requests that choose it are left to the proxy.
    Absent,
}

/// The input of routing decisions and picks.
#[derive(Clone, Debug)]
pub struct Policy<'a> {
    /// Start of the picks' clock, in nanoseconds of [`program_clock`](crate::program_clock).
    pub origin: u64,
    /// The block with the statistics of the candidates.
    pub block: u32,
    /// Numbers of the service, for picks.
    pub numbers: ServiceNumbers,
    /// Routes of the service, as numbers.
    pub routes: &'a RouteNumbers,
    /// The backends of their splits, in the order of the routes.
    pub arms: Vec<ArmTarget>,
}

impl Policy<'_> {
    fn value(&self, own: PolicyKey) -> PolicyValue {
        let Self { origin, block, numbers, routes, arms: targets } = self;
        let mut arms = [ArmValue::default(); ROUTE_ARMS];
        for (arm, (from, target)) in arms.iter_mut().zip(routes.arms.iter().zip(targets)) {
            let key = match target {
                ArmTarget::Own => own,
                ArmTarget::Published(key) => *key,
                ArmTarget::Absent => PolicyKey { position: 0, id: 0 },
            };
            let cumulative_weight = from.cumulative_weight;
            *arm = ArmValue { cumulative_weight, id: key.id, position: key.position, unused: 0 };
        }
        let mut steps = [RouteStep::NONE; ROUTE_STEPS];
        let step_count = routes.steps.len().min(ROUTE_STEPS);
        steps[..step_count].copy_from_slice(&routes.steps[..step_count]);
        PolicyValue {
            id: own.id,
            origin: *origin,
            block: *block,
            repeats_any: routes.repeats_any.into(),
            numbers: *numbers,
            // Cannot truncate: there are at most 32 steps.
            step_count: step_count as u32,
            unused_count: 0,
            arms,
            steps,
        }
    }
}

impl PublishedPolicy {
    /// Position and id of the policy, for splits of other services.
    pub fn key(&self) -> PolicyKey {
        PolicyKey { position: self.position, id: self.id }
    }

    /// Replaces the policy.
    pub fn update(&self, policy: &Policy<'_>) {
        let _writer = self.table.writer.lock().unwrap_or_else(PoisonError::into_inner);
        self.table.write(self.position, self.id, policy);
    }
}

impl Drop for PublishedPolicy {
    fn drop(&mut self) {
        let table = &self.table;
        let mut writer = table.writer.lock().unwrap_or_else(PoisonError::into_inner);
        // Removing an absent entry is not an error here.
        let _ = table.hosts.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.host);
        table.end(self.position);
        writer.used[self.position as usize] = false;
    }
}

impl fmt::Debug for PolicyTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PolicyTable").finish_non_exhaustive()
    }
}
