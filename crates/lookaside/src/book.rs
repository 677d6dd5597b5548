use std::collections::{HashMap, VecDeque};

/// The leases that are out, and when they end.
///
/// All last equally long, so the order in which they were entered is the order in which they end, and a queue does what
/// else a heap would.
#[derive(Debug)]
pub(crate) struct Book<T> {
    leases: HashMap<u64, T>,
    /// When each ends, and which; those that were closed before are skipped.
    order: VecDeque<(u64, u64)>,
    most: usize,
}

impl<T> Book<T> {
    /// One that holds `most` leases.
    pub(crate) fn new(most: usize) -> Self {
        Self { leases: HashMap::new(), order: VecDeque::new(), most: most.max(1) }
    }

    /// Enters a lease that ends at `ends`, which is not before those entered earlier end; where there is no room, the oldest
    /// comes back.
    pub(crate) fn enter(&mut self, id: u64, lease: T, ends: u64) -> Option<T> {
        self.leases.insert(id, lease);
        self.order.push_back((ends, id));
        if self.order.len() > 2 * self.most {
            self.order.retain(|(_, id)| self.leases.contains_key(id));
        }
        if self.leases.len() > self.most { self.take_oldest(|_| true) } else { None }
    }

    /// A lease that is out.
    pub(crate) fn get(&self, id: u64) -> Option<&T> {
        self.leases.get(&id)
    }

    /// Takes a lease before its end.
    pub(crate) fn close(&mut self, id: u64) -> Option<T> {
        self.leases.remove(&id)
    }

    /// Takes a lease that has ended by `now`.
    pub(crate) fn due(&mut self, now: u64) -> Option<T> {
        self.take_oldest(|ends| ends <= now)
    }

    /// How many are out.
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
    fn leases_end_in_order_once_and_those_closed_before_never() {
        let mut book = Book::new(10);
        for id in 0..4 {
            assert_eq!(book.enter(id, id, 100 + id), None);
        }
        assert_eq!((book.close(1), book.close(1), book.get(1)), (Some(1), None, None));
        assert_eq!(book.due(99), None);
        assert_eq!([book.due(102), book.due(102), book.due(102)], [Some(0), Some(2), None]);
        assert_eq!((book.len(), book.get(3)), (1, Some(&3)));
    }

    #[test]
    fn it_holds_so_many_and_forgets_what_was_closed() {
        let mut book = Book::new(3);
        let given_back: Vec<_> = (0..5).filter_map(|id| book.enter(id, id, id)).collect();
        assert_eq!((given_back, book.len()), (vec![0, 1], 3), "the oldest make room");
        for id in 5..1000 {
            assert_eq!(book.close(id - 1), Some(id - 1));
            book.enter(id, id, id);
        }
        assert!(book.order.len() <= 6, "{}", book.order.len());
    }
}
