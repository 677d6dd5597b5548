//! Segments in the keys of shard maps.

use std::fmt;

use crate::Region;

/// A part of a shard map. Maps are stored in parts so that callers can read the replicas of a single region
/// (ServiceRouter §3.2).
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ShardPart {
    /// The first keys of shards, for all regions. Displayed as `ranges`, which is not a valid region name.
    Ranges,
    /// The endpoints of a region, and the shards that they hold.
    Region(Region),
}

/// Name of a chunk: a 128-bit hash of its content. An unchanged chunk keeps its name and is not sent again.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChunkHash(pub u128);

impl fmt::Display for ChunkHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for ChunkHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for ShardPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ranges => f.write_str("ranges"),
            Self::Region(region) => region.fmt(f),
        }
    }
}

impl ShardPart {
    /// Parses the displayed form of a [`ShardPart`]; `None` if it is neither `ranges` nor the name of a region.
    pub fn read(text: &str) -> Option<Self> {
        if text == "ranges" { Some(Self::Ranges) } else { Region::new(text).ok().map(Self::Region) }
    }
}
