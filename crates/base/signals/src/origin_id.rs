use std::{
    num::NonZeroU16,
    sync::{PoisonError, RwLock},
};

use fairmesh_model::ServiceName;

/// Maximum number of origins that one process distinguishes. Calls with further origins continue without one.
const MAX_ORIGINS: u16 = 1_024;

/// Names of origins, numbered from 1. Entries are never removed, since calls in flight refer to origins by number.
static ORIGINS: RwLock<Vec<&'static str>> = RwLock::new(Vec::new());

/// Number of an origin, the first service in a chain of calls. Calls in progress carry the number, since carrying the
/// name would cost a reference count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OriginId(NonZeroU16);

impl OriginId {
    /// Returns the number of `service`; `None` if the process knows too many origins. Meant for services seen for the
    /// first time, since the lookup takes a lock.
    pub fn of(service: &ServiceName) -> Option<Self> {
        let name = service.to_string();
        let mut origins = ORIGINS.write().unwrap_or_else(PoisonError::into_inner);
        let position = match origins.iter().position(|known| **known == name) {
            Some(position) => position,
            None if origins.len() < usize::from(MAX_ORIGINS) => {
                origins.push(name.leak());
                origins.len() - 1
            }
            None => return None,
        };
        u16::try_from(position + 1).ok().and_then(Self::from_bits)
    }

    /// Returns the name of the origin; `None` if the number comes from another process and is unknown here.
    pub fn name(self) -> Option<&'static str> {
        let origins = ORIGINS.read().unwrap_or_else(PoisonError::into_inner);
        origins.get(usize::from(self.0.get()) - 1).copied()
    }

    pub(crate) fn from_bits(bits: u16) -> Option<Self> {
        NonZeroU16::new(bits).map(Self)
    }

    pub(crate) fn bits(self) -> u16 {
        self.0.get()
    }
}
