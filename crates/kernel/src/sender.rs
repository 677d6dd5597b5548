//! The maps by which the proxy has the kernel send requests: services that it publishes, and callers whose connections it serves.

use std::{
    fs::File,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

use aya::maps::{HashMap, MapData};
use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};

use crate::{
    KernelError,
    layout::{HostKey, ServiceValue},
    pins,
    slots::{EndpointSlots, SlotTable},
};

/// What the kernel knows of one proxy. One process at a time has it: two would give the same slots to different connections.
#[derive(Debug)]
pub struct KernelSender {
    slots: Arc<SlotTable>,
    services: Mutex<HashMap<MapData, HostKey, ServiceValue>>,
    served: Mutex<HashMap<MapData, u64, u64>>,
    sent: Mutex<HashMap<MapData, u64, u64>>,
    _lock: File,
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
        let mut services: HashMap<_, HostKey, ServiceValue> =
            pins::map(pins, "services")?.try_into().map_err(refused)?;
        let left: Vec<_> = services.keys().collect::<Result<_, _>>().map_err(refused)?;
        for host in left {
            services.remove(&host).map_err(refused)?;
        }
        let slots = SlotTable::open(&pins::map(pins, "slots")?, pins::map(pins, "pooled_sockets")?)?;
        Ok(Some(Self {
            slots: Arc::new(slots),
            services: Mutex::new(services),
            served: Mutex::new(pins::map(pins, "served")?.try_into().map_err(refused)?),
            sent: Mutex::new(pins::map(pins, "sent")?.try_into().map_err(refused)?),
            _lock: lock,
        }))
    }

    /// Slots for connections to an endpoint. `None` while all are in use.
    pub fn reserve(&self) -> Option<EndpointSlots> {
        self.slots.reserve()
    }

    /// Has the kernel send requests with this host to the endpoint; whether it does.
    pub fn publish(&self, host: &str, endpoint: &EndpointSlots) -> bool {
        let Some(key) = HostKey::new(host) else { return false };
        let value = ServiceValue { endpoint: endpoint.endpoint };
        self.services.lock().unwrap_or_else(PoisonError::into_inner).insert(key, value, 0).is_ok()
    }

    /// Leaves requests with this host to the proxy.
    pub fn unpublish(&self, host: &str) {
        if let Some(key) = HostKey::new(host) {
            // Fails only if it is not there.
            let _ = self.services.lock().unwrap_or_else(PoisonError::into_inner).remove(&key);
        }
    }

    /// Has the kernel send requests of this caller, once the proxy has [served](Self::set_served) what it sent before; whether it
    /// does.
    pub fn add_caller(&self, cookie: u64) -> bool {
        let insert = |map: &Mutex<HashMap<_, _, _>>| {
            map.lock().unwrap_or_else(PoisonError::into_inner).insert(cookie, 0, 0).is_ok()
        };
        // Programs look for both.
        insert(&self.sent) && insert(&self.served)
    }

    /// The proxy has responded, or is about to, to all requests in the first `bytes` of the caller's connection.
    pub fn set_served(&self, cookie: u64, bytes: u64) {
        // Fails only if the caller is not there: then the kernel sends none of its requests.
        let _ = self.served.lock().unwrap_or_else(PoisonError::into_inner).insert(cookie, bytes, 0);
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
