use std::{
    num::NonZeroU16,
    sync::{PoisonError, RwLock},
};

use fairmesh_model::ServiceName;

/// The most origins that one process tells apart. Calls of further ones go on without one.
const MAX_ORIGINS: u16 = 1_024;

/// Names of origins, numbered from 1. None is forgotten, since calls in flight name origins by their numbers.
static ORIGINS: RwLock<Vec<&'static str>> = RwLock::new(Vec::new());

/// The number of the first service of a chain of calls: a call in progress carries it, where a name would cost a reference count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OriginId(NonZeroU16);

impl OriginId {
    /// The number of a service; `None` if the process knows too many. For a service that comes for the first time: it takes a lock.
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

    /// The name of the service; `None` of a number that was read from elsewhere.
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
