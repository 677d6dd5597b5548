//! CPU of servers, attributed to the services whose calls were in flight.

use std::{fmt, str::FromStr};

use crate::{Invalid, ServiceName};

const UNKNOWN: &str = "(unknown)";
const OTHER: &str = "(other)";
const IDLE: &str = "(idle)";

/// Method by which the CPU of a service is attributed. With each of the two, the parts add up to the whole CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CpuBy {
    /// To the calling services.
    #[default]
    Caller,
    /// To the origins, which are the first services in the chains of calls.
    Origin,
}

/// The user to which CPU is attributed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CpuUser {
    /// A service whose calls were in flight.
    Service(ServiceName),
    /// Callers that have no verified service identity.
    Unknown,
    /// Services with small amounts, which are merged.
    Other,
    /// No caller: no call was in flight.
    Idle,
}

/// The calls to which an amount of CPU is attributed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CpuPath {
    /// The service whose servers used the CPU.
    pub service: ServiceName,
    /// Whether `user` is a caller or an origin.
    pub by: CpuBy,
    /// The user to which the CPU is attributed.
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
