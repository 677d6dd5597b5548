/// Does the same work for each of many items.
///
/// Planners are pure and start no threads: the caller decides how many cores a round may use.
pub trait Workers {
    /// Works on every item once, in any order, and returns when all are done.
    fn each<T: Send>(&self, items: &mut [T], work: impl Fn(&mut T) + Sync);
}

/// Works on one item after the other, in the thread of the caller.
#[derive(Clone, Copy, Debug)]
pub struct InSequence;

impl Workers for InSequence {
    fn each<T: Send>(&self, items: &mut [T], work: impl Fn(&mut T) + Sync) {
        items.iter_mut().for_each(work);
    }
}
