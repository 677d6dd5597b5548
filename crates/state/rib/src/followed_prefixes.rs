//! Limits the prefixes that all watches of a node follow together.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
};

use fairmesh_model::Prefix;

/// Maximum number of prefixes in one watch. A shared proxy follows at least three prefixes for each of 50,000
/// services, and its agent follows the prefixes of several proxies. Each prefix costs about 0.5 KB here.
pub const MAX_PREFIXES: usize = 262_144;
/// Memory of a followed prefix besides its text, in bytes: entries in the session, the hub and the backend.
const PREFIX_BYTES: usize = 448;
/// Maximum memory for the prefixes of all watches, in bytes.
pub const MAX_FOLLOWED_BYTES: usize = 512 << 20;
/// Memory for prefixes that each watch may use regardless of other watches, until the reserve is used up; in bytes.
/// Enough for about twenty services.
const MIN_PER_WATCH: usize = 32 << 10;
/// All watches of one peer together may use one in this many parts of the maximum memory.
const PER_PEER: usize = 4;
/// One in this many parts of the maximum memory is reserved for watches within the minimum.
const RESERVED: usize = 4;

/// Counts the memory of followed prefixes, and refuses prefixes beyond the maximum. Cheap to clone.
///
/// A watch may use at most as much of the shared part as remains free (a dynamic threshold, as in shared switch
/// buffers), and a little of the reserved part. Some memory is therefore always left for smaller watches, however
/// many watches there are. First come, first served was rejected: a few watches would exclude all others.
#[derive(Clone, Debug)]
pub struct FollowedPrefixes(Arc<Counts>);

#[derive(Debug)]
struct Counts {
    max: usize,
    min_per_watch: usize,
    followed: AtomicUsize,
    bytes: AtomicUsize,
    refused: AtomicU64,
    /// Memory used by each peer that has an identity and a watch, in bytes.
    peers: Mutex<HashMap<String, Weak<AtomicUsize>>>,
}

/// Counts the prefixes of one watch.
#[derive(Clone, Debug)]
pub(crate) struct WatchPrefixes {
    all: FollowedPrefixes,
    bytes: Arc<AtomicUsize>,
    /// Memory used by all watches of the same peer, in bytes.
    of_peer: Arc<AtomicUsize>,
    max_of_peer: usize,
}

/// One followed prefix, counted until the guard is dropped.
#[derive(Debug)]
pub(crate) struct FollowedPrefix {
    watch: WatchPrefixes,
    bytes: usize,
}

impl Default for FollowedPrefixes {
    fn default() -> Self {
        Self::at_most(MAX_FOLLOWED_BYTES, MIN_PER_WATCH)
    }
}

impl FollowedPrefixes {
    /// Creates other limits, in bytes: the maximum for all watches, and the minimum for each watch.
    pub fn at_most(max: usize, min_per_watch: usize) -> Self {
        let counts = Counts {
            max,
            min_per_watch,
            followed: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            refused: AtomicU64::new(0),
            peers: Mutex::default(),
        };
        Self(Arc::new(counts))
    }

    /// Returns the number of followed prefixes.
    pub fn count(&self) -> usize {
        self.0.followed.load(Relaxed)
    }

    /// Returns the memory of the followed prefixes, in bytes.
    pub fn bytes(&self) -> usize {
        self.0.bytes.load(Relaxed)
    }

    /// Returns the number of refused prefixes.
    pub fn refused(&self) -> u64 {
        self.0.refused.load(Relaxed)
    }

    /// Creates the counter of a new watch. All watches of one peer share the peer's limit. Peers without an identity
    /// cannot be distinguished, so each of their watches counts separately.
    pub(crate) fn watch(&self, peer: Option<String>) -> WatchPrefixes {
        let max = self.0.max;
        let (of_peer, max_of_peer) =
            peer.map_or_else(|| (Arc::default(), max), |peer| (self.bytes_of(peer), max / PER_PEER));
        WatchPrefixes { all: self.clone(), bytes: Arc::default(), of_peer, max_of_peer }
    }

    fn bytes_of(&self, peer: String) -> Arc<AtomicUsize> {
        // Every change is a single insertion or removal.
        let mut peers = self.0.peers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(bytes) = peers.get(&peer).and_then(Weak::upgrade) {
            return bytes;
        }
        peers.retain(|_, bytes| bytes.strong_count() > 0);
        let bytes = Arc::<AtomicUsize>::default();
        peers.insert(peer, Arc::downgrade(&bytes));
        bytes
    }
}

impl WatchPrefixes {
    /// Admits another prefix; `None` if it is refused.
    pub(crate) fn admit(&self, prefix: &Prefix) -> Option<FollowedPrefix> {
        let (counts, bytes) = (&self.all.0, PREFIX_BYTES + prefix.as_str().len());
        counts.followed.fetch_add(1, Relaxed);
        let all = counts.bytes.fetch_add(bytes, Relaxed) + bytes;
        let own = self.bytes.fetch_add(bytes, Relaxed) + bytes;
        let of_peer = self.of_peer.fetch_add(bytes, Relaxed) + bytes;
        let followed = FollowedPrefix { watch: self.clone(), bytes };
        let shared = counts.max - counts.max / RESERVED;
        let is_shared = own <= shared.saturating_sub(all) && of_peer <= self.max_of_peer;
        if is_shared || own <= counts.min_per_watch && all <= counts.max {
            return Some(followed);
        }
        self.count_refusal();
        None
    }

    /// Counts a refused prefix.
    pub(crate) fn count_refusal(&self) {
        self.all.0.refused.fetch_add(1, Relaxed);
    }
}

impl Drop for FollowedPrefix {
    fn drop(&mut self) {
        let Self { watch: WatchPrefixes { all, bytes, of_peer, .. }, bytes: released } = self;
        of_peer.fetch_sub(*released, Relaxed);
        bytes.fetch_sub(*released, Relaxed);
        all.0.bytes.fetch_sub(*released, Relaxed);
        all.0.followed.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watch_gets_reserved_memory_despite_greedy_watches() {
        const MAX: usize = 16 << 20;
        let followed = FollowedPrefixes::at_most(MAX, 8 << 10);
        let long = Prefix::new(format!("/{}/", "a".repeat(500))).unwrap();
        let fill = || {
            let watch = followed.watch(None);
            std::iter::from_fn(|| watch.admit(&long)).collect::<Vec<_>>()
        };
        let mut greedy = fill();
        assert!((MAX * 3 / 8 - 2048..=MAX * 3 / 8).contains(&followed.bytes()), "half of the shared part");
        for _ in 0..300 {
            greedy.extend(fill());
        }
        assert!(followed.bytes() <= MAX && followed.refused() > 300);
        let modest = fill();
        assert_eq!(modest.len(), 8, "8 KB");
        drop((greedy, modest));
        assert_eq!((followed.count(), followed.bytes()), (0, 0));
    }

    #[test]
    fn watches_of_one_peer_share_its_prefix_limit() {
        const MAX: usize = 16 << 20;
        let followed = FollowedPrefixes::at_most(MAX, 0);
        let long = &Prefix::new(format!("/{}/", "a".repeat(500))).unwrap();
        let fill = |peer: &str| {
            let watches: Vec<_> = (0..50).map(|_| followed.watch(Some(peer.into()))).collect();
            let held: Vec<_> =
                watches.iter().flat_map(|one| (0..1000).map_while(move |_| one.admit(long))).collect();
            (watches, held)
        };
        let greedy = fill("greedy");
        assert!(followed.bytes() <= MAX / PER_PEER && followed.bytes() > MAX / PER_PEER - 2048);
        let other = fill("other");
        assert!(other.1.len() > 3000, "{}", other.1.len());
        drop((greedy, other));
        assert_eq!((followed.count(), followed.bytes()), (0, 0));
        assert_eq!(fill("greedy").1.len(), MAX / PER_PEER / (PREFIX_BYTES + long.as_str().len()));
    }
}
