//! CPU of servers, by whose calls were in flight while it was used.

use std::{fmt, str::FromStr};

use crate::{Invalid, ServiceName};

const UNKNOWN: &str = "(unknown)";
const OTHER: &str = "(other)";
const IDLE: &str = "(idle)";

/// How the CPU of a service is divided: in two ways, each of which adds up to the whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CpuBy {
    /// By the calling service.
    #[default]
    Caller,
    /// By the first service of the chain of calls.
    Origin,
}

/// Whose calls were in flight.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CpuUser {
    /// Those of a service.
    Service(ServiceName),
    /// Those of callers without a verified identity of a service.
    Unknown,
    /// Those of services with the least of it, which are not told apart.
    Other,
    /// None.
    Idle,
}

/// CPU that is attributed together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CpuPath {
    /// The service whose servers used it.
    pub service: ServiceName,
    /// How it is divided.
    pub by: CpuBy,
    /// Whose calls were in flight.
    pub user: CpuUser,
}

impl fmt::Display for CpuUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Service(service) => service.fmt(f),
            Self::Unknown => f.write_str(UNKNOWN),
            Self::Other => f.write_str(OTHER),
            Self::Idle => f.write_str(IDLE),
        }
    }
}

impl FromStr for CpuUser {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        Ok(match text {
            UNKNOWN => Self::Unknown,
            OTHER => Self::Other,
            IDLE => Self::Idle,
            name => Self::Service(ServiceName::new(name)?),
        })
    }
}
