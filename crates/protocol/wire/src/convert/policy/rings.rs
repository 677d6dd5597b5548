use std::time::Duration;

use fairmesh_model::{Invalid, Ring};

use super::micros;
use crate::v1::{self, ring::Kind};

/// Rings for readers of earlier releases, which know no named rings: upper bounds in microseconds, with 0 for `any`.
pub(super) fn bounds(rings: &[Ring]) -> Vec<u64> {
    let bound = |ring: &Ring| match ring {
        Ring::Within(bound) => Some(micros(*bound).max(1)),
        Ring::Any => Some(0),
        Ring::Region | Ring::Neighbours | Ring::Continent => None,
    };
    rings.iter().filter_map(bound).collect()
}

/// The rings as messages; empty if `bounds` already represents all of them.
pub(super) fn named(rings: &[Ring]) -> Vec<v1::Ring> {
    if bounds(rings).len() == rings.len() {
        return Vec::new();
    }
    rings.iter().map(message).collect()
}

/// Converts a ring to a message.
pub(in crate::convert) fn message(ring: &Ring) -> v1::Ring {
    let (kind, within_us) = match ring {
        Ring::Within(bound) => (Kind::Within, micros(*bound).max(1)),
        Ring::Region => (Kind::Region, 0),
        Ring::Neighbours => (Kind::Neighbours, 0),
        Ring::Continent => (Kind::Continent, 0),
        Ring::Any => (Kind::Any, 0),
    };
    v1::Ring { kind: kind.into(), within_us }
}

/// Reads the rings of a policy.
pub(super) fn read(bounds: &[u64], named: &[v1::Ring]) -> Result<Vec<Ring>, Invalid> {
    let within = |us: u64| Ring::Within(Duration::from_micros(us));
    if named.is_empty() {
        return Ok(bounds.iter().map(|us| if *us == 0 { Ring::Any } else { within(*us) }).collect());
    }
    let ring = |(i, ring)| read_ring(ring).map_err(|e| e.within(format!("rings[{i}]")));
    named.iter().enumerate().map(ring).collect()
}

/// Parses a ring.
pub(in crate::convert) fn read_ring(ring: &v1::Ring) -> Result<Ring, Invalid> {
    match Kind::try_from(ring.kind) {
        // At least 1 µs, as every writer writes, so that records have only one form.
        Ok(Kind::Within) => Ok(Ring::Within(Duration::from_micros(ring.within_us.max(1)))),
        Ok(Kind::Region) => Ok(Ring::Region),
        Ok(Kind::Neighbours) => Ok(Ring::Neighbours),
        Ok(Kind::Continent) => Ok(Ring::Continent),
        Ok(Kind::Any) => Ok(Ring::Any),
        Err(_) => {
            let problem = format!("has the kind {}, which this release does not know", ring.kind);
            Err(Invalid::new("", problem, "upgrade this process, or use other rings"))
        }
    }
}
