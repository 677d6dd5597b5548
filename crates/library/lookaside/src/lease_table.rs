use std::collections::{HashMap, VecDeque};

/// Live leases by id, in the order of expiry.
///
/// All leases have the same duration, so insertion order is expiry order, and a queue suffices instead of a heap.
#[derive(Debug)]
pub(crate) struct LeaseTable<T> {
    leases: HashMap<u64, T>,
    /// Expiry and id of each lease. Removed leases are skipped.
    order: VecDeque<(u64, u64)>,
    capacity: usize,
}

impl<T> LeaseTable<T> {
    /// Creates a table for at most `capacity` leases.
    pub(crate) fn new(capacity: usize) -> Self {
        Self { leases: HashMap::new(), order: VecDeque::new(), capacity: capacity.max(1) }
    }

    /// Inserts a lease that expires at `ends`, which must not be before the expiry of leases inserted earlier. Returns
    /// the oldest lease if the table was full.
    pub(crate) fn insert(&mut self, id: u64, lease: T, ends: u64) -> Option<T> {
        self.leases.insert(id, lease);
        self.order.push_back((ends, id));
        if self.order.len() > 2 * self.capacity {
            self.order.retain(|(_, id)| self.leases.contains_key(id));
        }
        if self.leases.len() > self.capacity { self.take_oldest(|_| true) } else { None }
    }

    /// A live lease.
    pub(crate) fn get(&self, id: u64) -> Option<&T> {
        self.leases.get(&id)
    }

    /// Removes a lease before its expiry.
    pub(crate) fn remove(&mut self, id: u64) -> Option<T> {
        self.leases.remove(&id)
    }

    /// Removes a lease that has expired by `now`. Returns `None` if there is none.
    pub(crate) fn pop_expired(&mut self, now: u64) -> Option<T> {
        self.take_oldest(|ends| ends <= now)
    }

    /// The number of live leases.
    pub(crate) fn len(&self) -> usize {
        self.leases.len()
    }

    fn take_oldest(&mut self, is_due: impl Fn(u64) -> bool) -> Option<T> {
        while let Some((_, id)) = self.order.pop_front_if(|(ends, _)| is_due(*ends)) {
            if let Some(lease) = self.leases.remove(&id) {
                return Some(lease);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lookaside_leases_expire_once_in_order_unless_removed() {
        let mut leases = LeaseTable::new(10);
        for id in 0..4 {
            assert_eq!(leases.insert(id, id, 100 + id), None);
        }
        assert_eq!((leases.remove(1), leases.remove(1), leases.get(1)), (Some(1), None, None));
        assert_eq!(leases.pop_expired(99), None);
        assert_eq!(
            [leases.pop_expired(102), leases.pop_expired(102), leases.pop_expired(102)],
            [Some(0), Some(2), None]
        );
        assert_eq!((leases.len(), leases.get(3)), (1, Some(&3)));
    }

    #[test]
    fn lease_table_stays_bounded_after_many_removals() {
        let mut leases = LeaseTable::new(3);
        let evicted: Vec<_> = (0..5).filter_map(|id| leases.insert(id, id, id)).collect();
        assert_eq!((evicted, leases.len()), (vec![0, 1], 3), "the oldest make room");
        for id in 5..1000 {
            assert_eq!(leases.remove(id - 1), Some(id - 1));
            leases.insert(id, id, id);
        }
        assert!(leases.order.len() <= 6, "{}", leases.order.len());
    }
}
