use std::thread;

use fairmesh_planner::Workers;

/// Items for each thread at least: a service takes about as long to plan as a thread to start.
const LEAST_ITEMS: usize = 8;

/// Plans services in several threads while a round lasts.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlanningThreads(usize);

impl PlanningThreads {
    /// As many threads as this process has cores.
    pub(super) fn of_machine() -> Self {
        Self(thread::available_parallelism().map_or(1, usize::from))
    }
}

impl Workers for PlanningThreads {
    fn each<T: Send>(&self, items: &mut [T], work: impl Fn(&mut T) + Sync) {
        let threads = self.0.min(items.len() / LEAST_ITEMS);
        if threads < 2 {
            return items.iter_mut().for_each(work);
        }
        let part = items.len().div_ceil(threads);
        thread::scope(|scope| {
            for items in items.chunks_mut(part) {
                scope.spawn(|| items.iter_mut().for_each(&work));
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{Barrier, mpsc},
        time::Duration,
    };

    use super::*;

    #[test]
    fn planning_threads_work_on_items_at_the_same_time() {
        let (done, finished) = mpsc::channel();
        // A thread of its own, since threads that work one after the other would wait for ever.
        thread::spawn(move || {
            let (threads, mut items) = (3, [0; 3 * LEAST_ITEMS]);
            items.iter_mut().step_by(LEAST_ITEMS).for_each(|first| *first = 1);
            let meeting = Barrier::new(threads);
            PlanningThreads(threads).each(&mut items, |item| {
                if *item == 1 {
                    meeting.wait();
                }
            });
            done.send(()).unwrap();
        });
        finished.recv_timeout(Duration::from_secs(10)).unwrap();
    }

    #[test]
    fn planning_threads_process_each_item_once_at_any_thread_count() {
        for threads in 1..=5 {
            for count in [0, 1, LEAST_ITEMS, 2 * LEAST_ITEMS, 1_001] {
                let mut items = vec![0; count];
                PlanningThreads(threads).each(&mut items, |item| *item += 1);
                assert!(items.iter().all(|item| *item == 1), "{threads} threads, {count} items");
            }
        }
    }
}
