use std::{
    cell::Cell,
    time::{Duration, Instant},
};

use crate::{NodeId, OriginId};

thread_local! {
    static CURRENT: Cell<ServedCall> = const { Cell::new(ServedCall::NONE) };
    static BEGUN: Cell<u64> = const { Cell::new(0) };
}

/// A call that a server processes, and the time during which its child calls are in flight.
///
/// The server [enters](Self::enter) the call whenever it polls the call's future, and calls made meanwhile find it as
/// [`current`](Self::current). Swapping the value in and out costs no allocation and no reference count. Task-local
/// variables of tokio were rejected: every crate that counts would depend on a runtime.
#[derive(Clone, Copy, Debug)]
pub struct ServedCall {
    node: Option<NodeId>,
    /// The first service in the call's chain.
    origin: Option<OriginId>,
    /// Number that distinguishes calls: a child that ends while another call is current does not change that call.
    serial: u64,
    children: u32,
    /// Time since which at least one child is in flight.
    busy_since: Option<Instant>,
    busy: Duration,
}

/// A call that was made for the current call, until it [ends](Self::end).
#[derive(Debug)]
#[must_use = "the parent counts it as in flight until it ends"]
pub struct ChildCall {
    parent: u64,
}

/// Guard that keeps a call the current one of its thread until dropped.
#[derive(Debug)]
pub struct Entered<'a> {
    call: &'a mut ServedCall,
    outer: ServedCall,
}

impl ServedCall {
    /// Placeholder used outside of any call.
    pub const NONE: Self =
        Self { node: None, origin: None, serial: 0, children: 0, busy_since: None, busy: Duration::ZERO };

    /// Creates a call to `node` in a chain of calls that began at `origin`.
    pub fn new(node: Option<NodeId>, origin: Option<OriginId>) -> Self {
        let serial = BEGUN.with(|begun| {
            begun.set(begun.get().wrapping_add(1));
            // The address distinguishes threads, and the number distinguishes calls of a thread.
            (std::ptr::from_ref(begun).addr() as u64).rotate_left(32) ^ begun.get()
        });
        Self { node, origin, serial, ..Self::NONE }
    }

    /// The call whose future this thread polls.
    pub fn current() -> Self {
        CURRENT.get()
    }

    /// The node that processes the call.
    #[inline]
    pub fn node(&self) -> Option<NodeId> {
        self.node
    }

    /// The node of the call whose future this thread polls.
    #[inline]
    pub fn current_node() -> Option<NodeId> {
        CURRENT.with(|current| current.get().node)
    }

    /// The origin of the call whose future this thread polls.
    #[inline]
    pub fn current_origin() -> Option<OriginId> {
        CURRENT.with(|current| current.get().origin)
    }

    /// Makes this call the thread's current one until the guard is dropped.
    #[inline]
    pub fn enter(&mut self) -> Entered<'_> {
        let outer = CURRENT.replace(*self);
        Entered { call: self, outer }
    }

    /// Records that the current call makes a child call; `None` without a current call. `now` is called only if the
    /// time is needed.
    #[inline]
    pub fn begin_child(now: impl FnOnce() -> Instant) -> Option<ChildCall> {
        let mut call = CURRENT.get();
        if call.serial == 0 {
            return None;
        }
        call.children += 1;
        if call.busy_since.is_none() {
            call.busy_since = Some(now());
        }
        CURRENT.set(call);
        Some(ChildCall { parent: call.serial })
    }

    /// Returns the part of `took` during which no child was in flight. `took` is the duration of the call until
    /// `now`.
    pub fn exclusive(&self, took: Duration, now: Instant) -> Duration {
        let pending = self.busy_since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        took.saturating_sub(self.busy + pending)
    }
}

impl ChildCall {
    /// Records the end of the child call. Changes nothing while another call is current or after the parent has
    /// ended.
    pub fn end(self, now: Instant) {
        let mut call = CURRENT.get();
        if call.serial != self.parent {
            return;
        }
        call.children = call.children.saturating_sub(1);
        if call.children == 0
            && let Some(since) = call.busy_since.take()
        {
            call.busy += now.saturating_duration_since(since);
        }
        CURRENT.set(call);
    }
}

impl Drop for Entered<'_> {
    #[inline]
    fn drop(&mut self) {
        *self.call = CURRENT.replace(self.outer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn parallel_child_calls_count_once_in_exclusive_time() {
        // An `Instant` cannot be built from a number.
        #[allow(clippy::disallowed_methods, reason = "only differences to it matter")]
        let start = Instant::now();
        let mut call = ServedCall::new(None, None);
        let (first, second) = {
            let _entered = call.enter();
            let child = |at| ServedCall::begin_child(|| start + ms(at)).unwrap();
            (child(10), child(20))
        };
        assert!(ServedCall::begin_child(|| start).is_none(), "between two polls there is no call");
        {
            let _entered = call.enter();
            first.end(start + ms(30));
            second.end(start + ms(50));
            ServedCall::begin_child(|| start + ms(80)).unwrap().end(start + ms(90));
        }
        assert_eq!(call.exclusive(ms(100), start + ms(100)), ms(50));
        {
            let _entered = call.enter();
            let _never_ends = ServedCall::begin_child(|| start + ms(95));
        }
        assert_eq!(call.exclusive(ms(100), start + ms(100)), ms(45));
    }

    #[test]
    fn child_call_ending_during_another_call_changes_no_busy_time() {
        #[allow(clippy::disallowed_methods, reason = "only differences to it matter")]
        let start = Instant::now();
        let (mut one, mut other) = (ServedCall::new(None, None), ServedCall::new(None, None));
        let child = {
            let _entered = one.enter();
            let child = ServedCall::begin_child(|| start).unwrap();
            let _nested = other.enter();
            child
        };
        {
            let _entered = other.enter();
            child.end(start + ms(10));
        }
        assert_eq!(other.exclusive(ms(20), start + ms(20)), ms(20));
        assert_eq!(one.exclusive(ms(20), start + ms(20)), ms(0), "it is in flight for its own parent");
    }
}
